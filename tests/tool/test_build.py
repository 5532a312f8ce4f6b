"""`apply.py` gives the patched tree in build/, says so when there is nothing to do, and notices what changed."""

import json

from forks import NUMBERS, change

from patchseries import build


def test_the_tree_is_the_patched_one(built):
    assert b"value_5 = 50\n" in built.file("linear.py").read_bytes()
    assert built.file("srt/rows.py").read_bytes() == b"ROWS = 1\n"
    assert built.file("srt/tool.sh").stat().st_mode & 0o111
    assert built.file("srt/__init__.py").read_bytes() == b""


def test_native_modules_are_laid_in_and_are_not_part_of_the_tree(built):
    native = built.file("srt/_native.cpython-0-x.so")
    assert native.read_bytes() == b"\x7fELF native"
    record = build.read_record(built.build)
    assert "python/sglang/srt/_native.cpython-0-x.so" not in built.store.listing(record.trees[-1])


def test_a_second_run_does_nothing_and_says_so(built):
    before = built.build.stat().st_ino
    assert "up to date" in built.ok()
    assert built.build.stat().st_ino == before


def test_a_changed_patch_is_noticed_and_needs_a_new_pin(built):
    path = built.root / "patches" / "add-module.patch"
    path.write_bytes(path.read_bytes().replace(b"ROWS = 1", b"ROWS = 2"))
    before = built.snapshot()
    assert "--update-pin" in built.fails(1)
    assert built.snapshot() == before
    built.make()
    assert built.file("srt/rows.py").read_bytes() == b"ROWS = 2\n"


def test_an_edited_build_is_not_overwritten(built):
    built.file("other.py").write_bytes(b"precious work\n")
    before = built.snapshot()
    output = built.fails(1)
    assert "changed  python/sglang/other.py" in output and "--refresh" in output and "--force" in output
    assert built.snapshot() == before
    built.ok("--force")
    assert built.file("other.py").read_bytes() == b"def other():\n    return 2\n"


def test_leftovers_and_missing_files_are_noticed(built):
    built.file("other.py.orig").write_bytes(b"")
    built.file("linear.py").unlink()
    output = built.fails(1)
    assert "extra    python/sglang/other.py.orig" in output and "missing  python/sglang/linear.py" in output


def test_a_popped_build_is_rebuilt_without_asking(built):
    built.quilt("pop", "-a")
    assert built.file("linear.py").read_bytes() == NUMBERS
    assert "build/ is" in built.ok()
    assert b"value_5 = 50\n" in built.file("linear.py").read_bytes()


def test_bytecode_of_an_import_is_no_edit(built):
    (built.file("__pycache__")).mkdir()
    (built.file("__pycache__/linear.cpython-311.pyc")).write_bytes(b"x")
    assert "up to date" in built.ok()


def test_the_result_is_compared_with_the_pin_not_with_itself(built):
    pin = built.root / "upstream.toml"
    text = pin.read_text()
    record = build.read_record(built.build)
    pin.write_text(text.replace(record.trees[-1], "0" * 40))
    assert "patched_tree" in built.fails(1, "--force")


def test_the_record_says_what_was_built(built):
    record = json.loads((built.build / build.SENTINEL).read_text())
    assert record["version"] == "1.2.3+fork.1"
    assert record["source"] == {"kind": "wheel", "label": record["source"]["label"], "commit": None}
    assert list(record["patches"]) == ["edit-linear.patch", "add-module.patch"]


def test_progress_is_plain_lines_off_a_terminal_and_absent_when_quiet(built):
    built.file("linear.py").unlink()
    assert "Writing build/ ..." in built.ok("--force")
    assert "..." not in built.ok("--quiet")


def test_an_empty_series_is_refused(fork):
    assert "lists no patch" in fork.fails(3)
    assert not fork.build.exists()


def test_offsets_are_reported(fork):
    moved = change(NUMBERS, (b"value_1 = 1\n", b"zero = 0\nvalue_1 = 1\n"))
    edited = change(moved, (b"value_20 = 20\n", b"value_20 = 200\n"))
    fork.add("moved.patch", fork.patch_between("moved.patch", {"linear.py": moved}, {"linear.py": edited}))
    fork.ok("--update-pin")
    assert "moved.patch: python/sglang/linear.py, hunk 1 landed -1 lines off" in fork.ok()
