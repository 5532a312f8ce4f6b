#!/usr/bin/env python3
"""Is each patch's `Verify:` test a proof? It must pass on the tree up to the patch and fail on the tree without it.

    PYTHONPATH=build/python python tests/verify_series.py [PATCH ...]

Takes a copy of the patched tree and the patches back one by one, the last first. Prints a table; exit 1 if a test
passes where it must fail, fails where it must pass, or nothing was checked.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "engine")]

from trees import copy_tree, python_path  # noqa: E402

from patchseries import header, series  # noqa: E402

TIMEOUT_S = 600


def outcome(node: str, tree: Path) -> str:
    """passed, failed or skipped; a test that cannot even be imported on the tree has failed."""
    # The guard of tests/conftest.py wants the whole series.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--confcutdir=tests/engine", node]
    done = subprocess.run(command, cwd=ROOT, env=python_path(tree), capture_output=True, text=True, timeout=TIMEOUT_S)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]
    if done.returncode == 0:
        return "passed" if " passed" in last else "skipped"
    if done.returncode in (1, 2, 4):
        return "failed"
    raise SystemExit(f"verify_series: pytest ended with {done.returncode} on {node}: {last}")


def take_back(patch: Path, tree: Path) -> None:
    command = ["patch", "--reverse", "--strip=1", "--fuzz=0", "--quiet", "--force", "--input", str(patch)]
    subprocess.run(command, cwd=tree.parent, check=True, env=os.environ | {"LC_ALL": "C"})


def main() -> int:
    patches = series.load(ROOT / "series", ROOT / "patches")
    wanted = set(sys.argv[1:]) or {patch.name for patch in patches}
    if unknown := wanted - {patch.name for patch in patches}:
        raise SystemExit(f"verify_series: no such patch: {', '.join(sorted(unknown))}")
    checked = wrong = 0
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        tree = copy_tree(Path(scratch) / "python")
        for patch in reversed(patches):
            nodes = header.entries(patch, "Verify") if patch.name in wanted else []
            with_it = {node: outcome(node, tree) for node in nodes}
            take_back(ROOT / "patches" / patch.name, tree)
            for node in nodes:
                verdict = with_it[node], outcome(node, tree)
                good = verdict == ("passed", "failed")
                checked, wrong = checked + 1, wrong + (not good)
                print(
                    f"{'ok ' if good else 'NO '} {patch.name:45} with {verdict[0]:8} without {verdict[1]:8} {node}",
                    flush=True,
                )
    print(f"{checked} tests of {len(wanted)} patches, {wrong} prove nothing")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
