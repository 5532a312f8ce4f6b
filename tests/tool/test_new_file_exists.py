"""A new file of the series that upstream has too is a conflict, never overwritten (accident 11)."""

import pytest


@pytest.mark.parametrize("theirs", [b"THEIRS = 1\n", b"ROWS = 1\n", b""], ids=["other bytes", "same bytes", "empty"])
def test_it_is_a_conflict(built, theirs):
    built.pin({**built.upstream, "srt/rows.py": theirs})
    before = built.snapshot()
    output = built.fails(2, "--update-pin")
    assert "add-module.patch does not apply: python/sglang/srt/rows.py is a new file in the patch" in output
    assert built.snapshot() == before


def test_an_edited_file_that_is_gone_is_a_conflict(built):
    files = {path: value for path, value in built.upstream.items() if path != "other.py"}
    built.pin(files)
    assert "python/sglang/other.py does not exist in the tree" in built.fails(2, "--update-pin")


def test_a_renamed_file_is_a_conflict_and_nothing_waits_for_an_answer(built):
    """`patch` asks which file to patch, and a build hangs (accident 12)."""
    files = {("moved.py" if path == "linear.py" else path): value for path, value in built.upstream.items()}
    built.pin(files)
    assert "python/sglang/linear.py does not exist in the tree" in built.fails(2, "--update-pin")


def test_a_rename_onto_an_existing_file_is_a_conflict(fork):
    fork.add_files("move.patch", {"linear.py": None, "srt/linear.py": fork.upstream["linear.py"]})
    fork.pin({**fork.upstream, "srt/linear.py": b"theirs\n"})
    assert "the tree has that file already" in fork.fails(2, "--update-pin")


def test_a_mode_that_is_another_one_is_a_conflict(fork):
    fork.add_files("mode.patch", {"srt/tool.sh": (b"#!/bin/sh\necho tool\n", "100644")})
    fork.pin({**fork.upstream, "srt/tool.sh": (b"#!/bin/sh\necho tool\n", "100644")})
    assert "has mode 100644 in the tree, 100755 in the patch" in fork.fails(2, "--update-pin")
