"""Every test of the tool has a small fork of its own."""

from pathlib import Path

import pytest
from forks import NUMBERS, Fork, change


@pytest.fixture
def fork(tmp_path: Path, capsys: pytest.CaptureFixture) -> Fork:
    """A fork with a pin and an empty series."""
    root = tmp_path / "fork"
    (root / "tests" / "engine").mkdir(parents=True)
    (root / "tests" / "engine" / "test_it.py").write_text("def test_it():\n    pass\n")
    (root / "patches").mkdir()
    (root / "series").write_text("")
    made = Fork(root, tmp_path / "cache", capture=capsys.readouterr)
    made.pin()
    return made


@pytest.fixture
def built(fork: Fork) -> Fork:
    """A fork of two patches, built: one edits linear.py twice, one adds a module and edits other.py."""
    fork.add_change(
        "edit-linear.patch",
        linear_py=change(NUMBERS, (b"value_5 = 5\n", b"value_5 = 50\n"), (b"value_30 = 30\n", b"value_30 = 300\n")),
    )
    fork.add_change("add-module.patch", srt__rows_py=b"ROWS = 1\n", other_py=b"def other():\n    return 2\n")
    fork.make()
    return fork
