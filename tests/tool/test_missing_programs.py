"""Without quilt, patch, diff or git there is one line that says what to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = ["git", "patch", "quilt"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_said(fork, tmp_path, program):
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    fork.ok("--update-pin")
    shutil.copy(REPOSITORY / "apply.py", fork.root)
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for file in Path(directory).glob("*"):
            if file.name != program and not (tools / file.name).exists():
                (tools / file.name).symlink_to(file)
    done = subprocess.run(
        [sys.executable, "apply.py", "--cache", str(fork.cache)],
        cwd=fork.root, env={"PATH": str(tools), "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert f"{program} is not installed: install it (Debian: apt-get install {program})" in done.stderr
    assert "Traceback" not in done.stderr and not fork.build.exists() and not (fork.root / ".build.new").exists()
