"""A patch that no longer applies: file, hunk, and what the tree has there; build/ as it was."""

from forks import NUMBERS, change


def test_the_file_the_hunk_and_the_line(built):
    built.pin({**built.upstream, "linear.py": change(NUMBERS, (b"value_29 = 29\n", b"renamed = 29\n"))})
    before = built.snapshot()
    output = built.fails(2)
    assert (
        "edit-linear.patch does not apply: python/sglang/linear.py, hunk 2 of 2 (@@ -27,7 +27,7 @@)\n"
        "  python/sglang/linear.py, hunk 2 of 2 (@@ -27,7 +27,7 @@)\n"
        "    line 29: the patch expects 'value_29 = 29'\n"
        "    line 29: the tree has      'renamed = 29'\n"
    ) in output
    assert built.snapshot() == before


def test_the_line_is_found_where_the_code_moved_to(built):
    moved = b"".join(b"more_%d = 0\n" % n for n in range(50))
    moved += change(NUMBERS, (b"value_29 = 29\n", b"renamed = 29\n"))
    built.pin({**built.upstream, "linear.py": moved})
    assert "line 79: the tree has      'renamed = 29'" in built.fails(2)


def test_every_failed_hunk_is_shown(built):
    lines = (b"value_4 = 4\n", b"four = 4\n"), (b"value_29 = 29\n", b"renamed = 29\n")
    built.pin({**built.upstream, "linear.py": change(NUMBERS, *lines)})
    output = built.fails(2)
    assert "hunk 1 of 2" in output and "hunk 2 of 2" in output


def test_a_file_that_ends_early(built):
    built.pin({**built.upstream, "linear.py": NUMBERS[: NUMBERS.index(b"value_32")]})
    assert "line 32: the tree has      ''" in built.fails(2)


def test_an_earlier_patch_is_no_reason_to_apply_a_later_one(built):
    """The first of the series fails: nothing is applied."""
    built.pin({**built.upstream, "linear.py": b"nothing = 0\n"})
    before = built.snapshot()
    output = built.fails(2)
    assert "edit-linear.patch" in output and "add-module.patch" not in output
    assert built.snapshot() == before


def test_the_trees_text_is_shown_as_it_is(built):
    """No terminal markup, no emoji is made of it."""
    built.pin({**built.upstream, "linear.py": change(NUMBERS, (b"value_29 = 29\n", b"x = '[bold]:warning:[/]'\n"))})
    assert "[bold]:warning:[/]" in built.fails(2)
