"""A failed run leaves the last good build/, and what the tool did not make is never touched."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchseries import build

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [[], ["--force"], ["--clean"], ["--refresh"], ["--status"], ["--edit"]])
def test_a_build_made_by_hand_is_not_touched(fork, command):
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    fork.ok("--update-pin")
    fork.build.mkdir()
    (fork.build / "thesis.txt").write_text("years of work")
    before = fork.snapshot()
    assert "was not made by this tool" in fork.fails(3, *command)
    assert fork.snapshot() == before


def test_a_link_or_a_file_in_its_place_is_not_touched(fork, tmp_path):
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    fork.ok("--update-pin")
    fork.build.symlink_to(tmp_path / "nowhere")
    assert "was not made by this tool" in fork.fails(3)
    fork.build.unlink()
    fork.build.write_text("a file")
    assert "was not made by this tool" in fork.fails(3, "--force")
    assert fork.build.read_text() == "a file"


def test_clean_removes_only_the_build(built):
    (built.root / "notes.txt").write_text("mine")
    built.ok("--clean")
    assert not built.build.exists() and (built.root / "notes.txt").exists()
    built.ok("--clean")


def test_a_run_killed_while_writing_is_made_good(built):
    """What it left is the unfinished tree beside build/; build/ is the last good one."""
    unfinished = built.root / ".build.new"
    shutil.copytree(built.build, unfinished)
    (unfinished / "python" / "sglang" / "linear.py").write_bytes(b"half")
    assert "up to date" in built.ok()
    built.file("linear.py").write_bytes(b"x")
    built.ok("--force")
    assert not unfinished.exists() and built.file("linear.py").read_bytes() != b"half"


def test_a_run_killed_between_two_renames_is_made_good(built):
    good = built.build.stat().st_ino
    built.build.rename(built.root / ".build.old")
    assert "up to date" in built.ok()
    assert built.build.stat().st_ino == good and not (built.root / ".build.old").exists()


def test_the_swap_exchanges_the_two(tmp_path):
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "which").write_text(name)
    build._swap(tmp_path / "new", tmp_path / "place")
    assert (tmp_path / "place" / "which").read_text() == "new"


def test_two_runs_at_once_do_not_mix(built):
    with built.project.lock():
        assert "another apply.py is at work" in built.fails(3)
    built.ok()


def test_a_read_only_target_is_one_line(fork):
    """Root may write anywhere, so the run gets root without that right where the tests run as root."""
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    fork.ok("--update-pin")
    shutil.copy(REPOSITORY / "apply.py", fork.root)
    limited = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    fork.root.chmod(0o555)
    try:
        done = subprocess.run(
            [*limited, sys.executable, "apply.py", "--cache", str(fork.cache)],
            cwd=fork.root, env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True,
        )  # fmt: skip
    finally:
        fork.root.chmod(0o755)
    assert done.returncode == 3 and "cannot be written (Permission denied)" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not fork.build.exists()
