"""`--lint` reports every problem of headers, form, order and style, each in a line of its own."""

import re

import pytest
from forks import HEADER, NUMBERS, UPSTREAM, change


def lint(fork) -> str:
    """The output of a lint that finds something."""
    fork.ok("--refresh")
    fork.ok("--update-pin")
    return fork.fails(1, "--lint")


def with_header(fork, old: str, new: str):
    text = HEADER.format(name="edit.patch")
    assert old in text
    base = {"other.py": UPSTREAM["other.py"]}
    edited = {"other.py": b"def other():\n    return 2\n"}
    fork.add("edit.patch", fork.patch_between("edit.patch", base, edited, text.replace(old, new)))


def test_a_good_series_has_no_problem(built):
    built.ok("--refresh")
    built.ok("--update-pin")
    assert "no problem" in built.ok("--lint")


@pytest.mark.parametrize(
    "field",
    ["Description", "Origin", "Author", "Forwarded", "Last-Update", "Depends", "Drop-When", "Verify", "Watches"],
)
def test_each_field_is_needed(fork, field):
    with_header(fork, f"{field}:", "Bug:")
    assert f"edit.patch: the header has no {field}" in lint(fork)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("2026-01-31", "31.1.2026", "not a date"),
        ("2026-01-31", "2026-02-30", "not a date"),
        ("Depends: none", "Depends: other.patch", "no earlier patch"),
        ("Depends: none", "Depends: edit.patch", "no earlier patch"),
        ("Origin: vendor", "Origin: vendor\nOrigni: x", "unknown field Origni"),
        ("Watches: none", "Watches: python/sglang/no.py::x", "the tree has no such file"),
        ("Watches: none", "Watches: python/sglang/other.py::gone", "the file does not define it"),
        ("test_it.py::test_it", "test_no.py::test_it", "no such file"),
        ("test_it.py::test_it", "test_it.py::test_no", "the file has no such test"),
        ("tests/engine/test_it.py::test_it", "none", "must name the test"),
        ("tests/engine/test_it.py::test_it", "by hand", "not a test like"),
    ],
)
def test_each_field_is_checked(fork, old, new, says):
    with_header(fork, old, new)
    output = lint(fork)
    assert says in output and "lint: 1 problems in 1 patches, 1 hunks, 1 files" in output


@pytest.mark.parametrize("symbol", ["other", "_version.py::version"])
def test_watched_symbols_are_found(fork, symbol):
    symbol = symbol if "::" in symbol else f"other.py::{symbol}"
    with_header(fork, "Watches: none", f"Watches:\n python/sglang/{symbol}")
    fork.ok("--refresh")
    fork.ok("--update-pin")
    fork.ok("--lint")


def test_depends_on_an_earlier_patch_is_fine(built):
    path = built.root / "patches" / "add-module.patch"
    path.write_bytes(path.read_bytes().replace(b"Depends: none", b"Depends: edit-linear.patch"))
    built.ok("--refresh")
    built.ok("--update-pin")
    built.ok("--lint")


def test_another_form_is_a_problem(built):
    built.ok("--refresh")
    path = built.root / "patches" / "add-module.patch"
    path.write_bytes(path.read_bytes().replace(b"@@ -0,0 +1 @@", b"@@ -0,0 +1,1 @@"))
    built.ok("--update-pin")
    assert "add-module.patch: not in canonical form" in built.fails(1, "--lint")


def test_an_offset_is_a_problem(fork):
    moved = b"zero = 0\n" + NUMBERS
    edited = change(moved, (b"value_20 = 20\n", b"value_20 = 0\n"))
    fork.add("moved.patch", fork.patch_between("moved.patch", {"linear.py": moved}, {"linear.py": edited}))
    fork.ok("--update-pin")
    assert "moved.patch: not in canonical form" in fork.fails(1, "--lint")


def test_an_outdated_patches_md_is_a_problem(built):
    built.ok("--refresh")
    built.ok("--update-pin")
    (built.root / "PATCHES.md").write_text("old\n")
    assert "PATCHES.md is not up to date" in built.fails(1, "--lint")
    assert "PATCHES.md too" in built.ok("--refresh")
    built.ok("--lint")


def test_an_outdated_pin_is_a_problem(built):
    built.ok("--refresh")
    pin = built.root / "upstream.toml"
    pin.write_text(re.sub(r'(?m)^touched_after = ".*"$', f'touched_after = "{"0" * 64}"', pin.read_text()))
    assert "upstream.toml is not that of this series" in built.fails(1, "--lint")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"import os\n", "line 1: F401"),
        (b"def f():\n    return nowhere\n", "line 2: F821"),
        (b"import sys\nimport os\n\nX = (os, sys)\n", "line 1: I001"),
        (b"X = 'single'\n", "line 1: not formatted"),
        (b"X = 1 \n", "line 1: not formatted"),
        (b"X = " + b"1 + " * 40 + b"1\n", "line 1: not formatted"),
    ],
)
def test_added_lines_obey_upstreams_rules(fork, source, says):
    fork.add_change("style.patch", srt__new_py=source)
    assert f"style.patch: python/sglang/srt/new.py, {says}" in lint(fork)


def test_lines_that_are_upstreams_own_are_not_judged(fork):
    ugly = b"import os\nX = 'single'\n\n\n\n\ndef f():\n    return nowhere\n" + b"\n\n" + b"Y=1\n"
    fork.pin({**fork.upstream, "ugly.py": ugly})
    fork.add_change("edit.patch", ugly_py=ugly + b"Z = 2\n")
    fork.ok("--refresh")
    fork.ok("--update-pin")
    assert "no problem" in fork.ok("--lint")


def test_every_problem_is_reported_not_the_first(fork):
    fork.add("bare.patch", fork.patch_between("bare.patch", {}, {"new.py": b"import os\n"}, ""))
    output = lint(fork)
    assert output.count("bare.patch: ") == 10 and "lint: 10 problems" in output
