"""`series` and `patches/` agree both ways, and quilt reads the file as this tool does (accident 21)."""

import pytest


def test_a_missing_patch_is_named(built):
    (built.root / "patches" / "add-module.patch").unlink()
    before = built.snapshot()
    output = built.fails(3)
    assert "series names add-module.patch" in output and "no such file" in output
    assert built.snapshot() == before


def test_a_patch_that_is_not_in_the_series_is_named(built):
    (built.root / "patches" / "stray.patch").write_bytes(b"x")
    for command in ([], ["--lint"], ["--refresh"], ["--update-pin"], ["--status"]):
        assert "stray.patch is not in" in built.fails(3, *command)


@pytest.mark.parametrize(
    "line",
    [
        "add-module.patch -p0",
        "add-module.patch -R",
        " add-module.patch",
        "a/b.patch",
        "x.patch.gz",
        "a.patch # why",
    ],
)
def test_syntax_that_quilt_reads_otherwise_is_refused(built, line):
    (built.root / "series").write_text(f"edit-linear.patch\n{line}\n")
    assert "line 2: " in built.fails(3)


def test_a_patch_listed_twice_is_refused(built):
    (built.root / "series").write_text("edit-linear.patch\nadd-module.patch\nedit-linear.patch\n")
    assert "line 3: edit-linear.patch is listed twice" in built.fails(3)


def test_a_missing_series_file_is_said(built):
    (built.root / "series").unlink()
    assert "series is missing" in built.fails(3)


def test_crlf_line_ends_are_refused(built):
    (built.root / "series").write_bytes(b"edit-linear.patch\r\nadd-module.patch\r\n")
    assert "line 1: " in built.fails(3)


def test_comments_and_empty_lines_are_not_patches_for_either(built):
    (built.root / "series").write_text("# first the rows\nedit-linear.patch\n\n# then the module\nadd-module.patch\n")
    assert "up to date" in built.ok()
    assert built.quilt("series").split() == ["edit-linear.patch", "add-module.patch"]


def test_the_order_is_the_series(built):
    """Two patches in the other order make another series, also where the tree is the same."""
    (built.root / "series").write_text("add-module.patch\nedit-linear.patch\n")
    assert "the patches are not the pinned ones" in built.fails(1)
