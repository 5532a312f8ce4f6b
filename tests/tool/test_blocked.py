"""The check goes on past the first failure, and says what depends on it."""

from forks import NUMBERS, change
from upstreams import add, directory, judged


def five(fork):
    """Five patches: the third needs lines of the second, the fifth names it in its header."""
    first = change(NUMBERS, (b"value_2 = 2\n", b"value_2 = 20\n"))
    second = change(first, (b"value_15 = 15\n", b"value_15 = 150\nadded = 15\n"))
    third = change(second, (b"added = 15\n", b"added = 16\n"))
    fourth = change(third, (b"value_35 = 35\n", b"value_35 = 350\n"))
    add(fork, "first.patch", {"linear.py": first})
    add(fork, "second.patch", {"linear.py": second, "new.py": b"NEW = 1\n"})
    add(fork, "third.patch", {"linear.py": third})
    add(fork, "fourth.patch", {"linear.py": fourth, "new.py": b"NEW = 2\n"})
    add(fork, "fifth.patch", {"other.py": b"def other():\n    return 5\n"}, depends="second.patch")


def test_a_conflict_in_the_second_of_five_blocks_the_third_and_the_fifth(fork, tmp_path):
    five(fork)
    drifted = change(NUMBERS, (b"value_15 = 15\n", b"value_15 = fifteen\n"))
    found = judged(fork, directory(tmp_path / "next", {**fork.upstream, "linear.py": drifted}))["patches"]
    assert {name: patch["verdict"] for name, patch in found.items()} == {
        "first.patch": "clean",
        "second.patch": "conflict",
        "third.patch": "blocked",
        "fourth.patch": "offset",  # the line that the second adds is missing
        "fifth.patch": "blocked",
    }
    assert found["third.patch"]["blocked_by"] == found["fifth.patch"]["blocked_by"] == ["second.patch"]
    assert found["third.patch"]["hunks"][0]["blocked_by"] == ["second.patch"]
    assert found["second.patch"]["hunks"][1]["verdict"] == "clean", "its new file is no part of the conflict"


def test_blocked_is_passed_on(fork, tmp_path):
    five(fork)
    add(fork, "sixth.patch", {"srt/__init__.py": b"SIX = 6\n"}, depends="fifth.patch")
    drifted = change(NUMBERS, (b"value_15 = 15\n", b"value_15 = fifteen\n"))
    found = judged(fork, directory(tmp_path / "next", {**fork.upstream, "linear.py": drifted}))["patches"]
    assert (found["sixth.patch"]["verdict"], found["sixth.patch"]["blocked_by"]) == ("blocked", ["fifth.patch"])
    assert found["sixth.patch"]["hunks"][0]["verdict"] == "clean"


def test_a_removed_line_between_two_lines_is_needed_too(fork, tmp_path):
    removed = change(NUMBERS, (b"value_15 = 15\n", b""))
    add(fork, "remove.patch", {"linear.py": removed})
    add(fork, "edit.patch", {"linear.py": change(removed, (b"value_17 = 17\n", b"value_17 = 170\n"))})
    drifted = change(NUMBERS, (b"value_15 = 15\n", b"value_15 = fifteen\n"))
    found = judged(fork, directory(tmp_path / "next", {**fork.upstream, "linear.py": drifted}))["patches"]
    assert (found["remove.patch"]["verdict"], found["edit.patch"]["verdict"]) == ("conflict", "blocked")


def test_an_own_conflict_outweighs_blocked(fork, tmp_path):
    five(fork)
    both = change(NUMBERS, (b"value_15 = 15\n", b"value_15 = 0\n"), (b"value_35 = 35\n", b"value_35 = 0\n"))
    found = judged(fork, directory(tmp_path / "next", {**fork.upstream, "linear.py": both}))["patches"]
    assert found["fourth.patch"]["verdict"] == "conflict" and found["third.patch"]["verdict"] == "blocked"


def test_a_line_that_an_earlier_patch_wrote_is_needed(fork, tmp_path):
    """A file of one line: there is no neighbour to tell it by."""
    fork.pin({**fork.upstream, "one.py": b"ONE = 1\n"})
    add(fork, "first.patch", {"one.py": b"ONE = 2\n"})
    add(fork, "second.patch", {"one.py": b"ONE = 3\n"})
    found = judged(fork, directory(tmp_path / "next", {**fork.upstream, "one.py": b"ONE = 0\n"}))["patches"]
    assert (found["first.patch"]["verdict"], found["second.patch"]["verdict"]) == ("conflict", "blocked")
