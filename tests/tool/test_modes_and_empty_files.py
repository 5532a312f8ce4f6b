"""Exec bits, empty files, deletions and renames survive applying, quilt and refresh (accident 10)."""

import pytest
from forks import NUMBERS, change

from patchseries import build
from patchseries.listing import EXECUTABLE, REGULAR

CHANGES = {
    "mode on": {"linear.py": (NUMBERS, EXECUTABLE)},
    "mode off": {"srt/tool.sh": (b"#!/bin/sh\necho tool\n", REGULAR)},
    "mode and text": {"linear.py": (change(NUMBERS, (b"value_9 = 9\n", b"value_9 = 0\n")), EXECUTABLE)},
    "text of an executable": {"srt/tool.sh": (b"#!/bin/sh\necho other\n", EXECUTABLE)},
    "new empty file": {"srt/new/__init__.py": b""},
    "new executable": {"srt/new.sh": (b"#!/bin/sh\n", EXECUTABLE)},
    "new empty executable": {"srt/new.sh": (b"", EXECUTABLE)},
    "empty file deleted": {"srt/__init__.py": None},
    "file deleted": {"other.py": None},
    "executable deleted": {"srt/tool.sh": None},
    "empty file filled": {"srt/__init__.py": b"FILLED = 1\n"},
    "file emptied": {"other.py": b""},
    "rename": {"linear.py": None, "srt/linear.py": NUMBERS},
    "rename and edit": {"linear.py": None, "srt/a.py": change(NUMBERS, (b"value_9 = 9\n", b"value_9 = 0\n"))},
    "rename and mode": {"linear.py": None, "srt/linear.py": (NUMBERS, EXECUTABLE)},
    "much at once": {
        "linear.py": None,
        "srt/linear.py": NUMBERS + b"last = 1\n",
        "other.py": b"def other():\n    return 3\n",
        "srt/new/__init__.py": b"",
        "srt/__init__.py": None,
        "srt/tool.sh": (b"#!/bin/sh\necho tool\n", REGULAR),
        "zz.py": b"Z = 1\n",
    },
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_it_survives(fork, changes):
    path = fork.add_files("first.patch", changes)
    fork.add_files("second.patch", {"_version.py": b"__version__ = version = '1.2.4'\n"})
    fork.make()
    tree = fork.tree(fork.patched)
    expected = {path: entry for path, entry in fork.store.listing(tree).items()}
    record = build.read_record(fork.build)
    assert record.trees[-1] == tree
    assert build.contents(fork.build, record) == expected

    before = path.read_bytes()
    assert "no patch rewritten" in fork.ok("--refresh"), "a refresh on the unchanged pin is an empty diff"
    assert path.read_bytes() == before

    # A round trip through quilt, and an edit on top: still nothing of the first patch is lost.
    fork.quilt("pop", "-a")
    fork.quilt("push", "-a")
    file = fork.file("_version.py")
    file.write_bytes(file.read_bytes() + b"more = 1\n")
    assert "second.patch rewritten" in fork.ok("--refresh")
    assert path.read_bytes() == before
    fork.make()
    assert fork.file("_version.py").read_bytes().endswith(b"more = 1\n")


@pytest.mark.parametrize("between", [None, b""], ids=["gone", "empty"])
def test_a_file_gone_or_empty_between_two_patches(fork, between):
    """quilt's backups cannot tell an empty file from none; the tool knows which it was."""
    first = fork.add_files("first.patch", {"other.py": between})
    fork.add_files("second.patch", {"other.py": b"AGAIN = 1\n"})
    fork.make()
    before = first.read_bytes()
    fork.file("other.py").write_bytes(b"AGAIN = 2\n")
    assert "second.patch rewritten" in fork.ok("--refresh")
    assert first.read_bytes() == before


def test_a_rename_is_written_as_one(fork):
    """Readers see what moved, not a file that goes and another that comes."""
    text = fork.add_files("rename.patch", CHANGES["rename and edit"]).read_bytes()
    assert b"rename from python/sglang/linear.py\nrename to python/sglang/srt/a.py\n" in text
    assert text.count(b"\n+value") == text.count(b"\n-value") == 1


def test_what_quilt_refresh_forgets_is_put_back(fork):
    """`quilt refresh` writes neither a mode nor an empty file; the tool reads the tree."""
    path = fork.add_files("first.patch", CHANGES["much at once"])
    before = path.read_bytes()
    fork.make()
    fork.quilt("refresh", "-f")
    assert path.read_bytes() != before, "the accident itself"
    fork.file("zz.py").write_bytes(b"Z = 2\n")
    fork.quilt("refresh", "-f")
    fork.ok("--refresh")
    assert path.read_bytes() == before.replace(b"+Z = 1\n", b"+Z = 2\n")


def test_binary_content_is_refused(fork):
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    fork.make()
    fork.quilt("add", "python/sglang/blob.bin")
    fork.file("blob.bin").write_bytes(b"\0\1\2")
    assert "blob.bin is binary" in fork.fails(3, "--refresh")
    assert b"blob" not in (fork.root / "patches" / "edit.patch").read_bytes()
