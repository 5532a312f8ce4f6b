#!/usr/bin/env python3
"""Does the series still fit? `apply.py --check` of upstream's main and its newest release, kept as files.

    ci/nightly_check.py OUT [REF ...]      (default: main and the newest release of the package index)

Writes OUT/report.json and OUT/report.md, and shows the latter on the page of the job. Exit status: that of --check.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from patchseries import pin, report, wheel  # noqa: E402
from patchseries.errors import USAGE, ToolError  # noqa: E402


def refs(root: Path) -> list[str]:
    """Upstream's main, and the newest release that is no preview; ToolError if the index cannot be asked."""
    newest = wheel.releases(pin.load(root / "upstream.toml").package)[0]
    return ["main", newest]


def check(root: Path, out: Path, chosen: list[str]) -> int:
    """Run the check and keep its reports; ToolError if it gave none."""
    done = subprocess.run(
        [sys.executable, root / "apply.py", "--check", *chosen, "--json"], cwd=root, capture_output=True, text=True
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        reason = done.stderr.strip().splitlines() or ["no message"]
        raise ToolError(f"--check gave no report: {reason[-1]}") from None
    text = report.as_markdown(found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(done.stdout, encoding="utf-8")
    (out / "report.md").write_text(text, encoding="utf-8")
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(page, "a", encoding="utf-8") as summary:
            summary.write(text)
    print(done.stderr.strip() or f"check: {', '.join(chosen)} clean")
    return done.returncode


def main(argv: list[str], root: Path = ROOT) -> int:
    if not argv or argv[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return USAGE
    try:
        return check(root, Path(argv[0]), argv[1:] or refs(root))
    except ToolError as error:
        print(f"nightly_check.py: {error.message}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
