"""A check that looked at nothing does not pass; every check says how much it looked at (accident 19)."""

import re

import pytest

COMMANDS = ["--lint", "--refresh", "--update-pin", "--status", "--doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_series_is_no_success(fork, command):
    fork.run(command)
    status, output = fork.run(command)
    assert status != 0 and "no patch" in output


@pytest.mark.parametrize("command", ["--lint", "--update-pin"])
def test_a_patch_without_a_file_is_no_success(fork, command):
    fork.add("empty.patch", b"Description: nothing\n")
    assert "empty.patch changes no file" in fork.fails(3, command)


def test_lint_says_how_much(built):
    built.ok("--refresh")
    built.ok("--update-pin")
    assert re.search(r"lint: no problem in 2 patches, 4 hunks, 3 files", built.ok("--lint"))


def test_refresh_and_status_say_how_much(built):
    assert "refreshed 2 patches, 4 hunks, 3 files" in built.ok("--refresh")
    assert "2 patches, 4 hunks, 3 files" in built.ok("--status")


def test_a_wheel_without_the_package_is_no_upstream(fork, tmp_path):
    from forks import write_wheel

    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    path = write_wheel(tmp_path / "sglang-9-py3-none-any.whl", {})
    assert "not a wheel of sglang" in fork.fails(3, "--source", str(path))
