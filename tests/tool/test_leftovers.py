"""No .orig and no .rej reaches build/ or a patch (accident 13)."""

from patchseries import build

SUFFIXES = (".orig", ".rej")


def leftovers(fork):
    return [path for path in fork.build.rglob("*") if path.name.endswith(SUFFIXES)]


def test_a_build_has_none_even_where_a_hunk_is_off_its_line(fork):
    text = fork.upstream["linear.py"]
    moved = b"zero = 0\n" + text
    edited = moved.replace(b"value_20 = 20\n", b"value_20 = 0\n")
    fork.add("moved.patch", fork.patch_between("moved.patch", {"linear.py": moved}, {"linear.py": edited}))
    fork.make()
    assert leftovers(fork) == []


def test_a_failed_run_leaves_none(built):
    built.pin({**built.upstream, "linear.py": b"nothing alike\n"})
    built.fails(2)
    assert leftovers(built) == [] and not (built.root / ".build.new").exists()


def test_one_in_build_is_noticed_by_every_command(built):
    built.file("linear.py.orig").write_bytes(b"old\n")
    assert "linear.py.orig" in built.fails(1)
    assert "linear.py.orig" in built.fails(1, "--refresh")
    assert "unsaved edits" in built.fails(1, "--status")


def test_upstreams_own_file_of_such_a_name_is_kept(fork):
    fork.pin({**fork.upstream, "data.orig": b"upstream's\n"})
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    fork.make()
    assert fork.file("data.orig").read_bytes() == b"upstream's\n"
    assert build.read_record(fork.build)
