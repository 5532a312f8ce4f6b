#!/usr/bin/env python3
"""Collect what a release consists of.

    ci/release.py TAG OUT

TAG has to be the version in upstream.toml. OUT gets the patched wheels of every pinned wheel, the overlay file,
PATCHES.md, the measured results, SHA256SUMS and NOTES.md. Exit status: 0 done; 1 TAG is another version, or the series
is not the pinned one; 3 something is missing.
"""

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from apply import default_cache  # noqa: E402
from patchseries import dist, pin, wheel  # noqa: E402
from patchseries.build import Project  # noqa: E402
from patchseries.console import Console  # noqa: E402
from patchseries.errors import DRIFT, OK, USAGE, ToolError  # noqa: E402
from patchseries.store import Store  # noqa: E402


def collect(project: Project, store: Store, console: Console, tag: str, out: Path) -> None:
    """Write the files of a release; ToolError leaves OUT as it was."""
    pinned = pin.load(project.pin)
    if tag != pinned.version:
        raise ToolError(f"the tag is {tag}, upstream.toml says {pinned.version}: tag that, or raise `revision`", DRIFT)
    if out.exists():
        raise ToolError(f"{out} exists: name a directory that does not")
    dist.write_wheels(project, store, console, ["all"])
    dist.write_overlay(project, store, console)
    made = sorted(path for path in (project.root / "dist").iterdir() if f"-{pinned.version}" in path.name)
    results = sorted((project.root / "docs" / "results").glob("*.*"))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        whole = Path(scratch, "release")
        whole.mkdir()
        for path in [*made, project.root / "PATCHES.md", *results]:
            shutil.copy(path, whole)
        (whole / "NOTES.md").write_text(notes(pinned, len(results)), encoding="utf-8")
        sums = "".join(f"{wheel.sha256(path)}  {path.name}\n" for path in sorted(whole.iterdir()))
        (whole / "SHA256SUMS").write_text(sums, encoding="utf-8")
        whole.rename(out)
    console.result(f"{out} has {len(sums.splitlines()) + 1} files of {pinned.version}")


def notes(pinned: pin.Pin, results: int) -> str:
    """The text of a release."""
    measured = "The measured results are attached." if results else "Nothing has been measured for this revision yet."
    return (
        f"{pinned.package} {pinned.release} ({pinned.tag}) with the series {pinned.products.series[:12]}; patched tree "
        f"`{pinned.products.patched_tree}`. What is changed and why: PATCHES.md. {measured}\n\n"
        "`pip install --no-deps` the wheel of your Python and machine over the release, or lay the `.pyz` over an "
        f"installed one: `python3 {pinned.package}-{pinned.version}.pyz`. Back: install the release again.\n"
    )


def main(argv: list[str], root: Path = ROOT, cache: Path | None = None) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return USAGE
    try:
        collect(Project(root), Store(cache or default_cache()), Console(), argv[0], Path(argv[1]))
    except ToolError as error:
        print(f"release.py: {error.message}", file=sys.stderr)
        return error.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
