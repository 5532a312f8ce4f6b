"""A patch is made of what was edited in it, never of a dirty tree (accident 16)."""


def test_an_edit_outside_every_patch_is_refused(built):
    """quilt knows linear.py and rows.py; _version.py was never added to a patch."""
    built.file("srt/rows.py").write_bytes(b"ROWS = 2\n")
    built.file("_version.py").write_bytes(b"debugging\n")
    before = built.snapshot()
    output = built.fails(1, "--refresh")
    assert "changed outside its patches" in output and "changed  python/sglang/_version.py" in output
    assert built.snapshot() == before


def test_a_stray_file_is_refused(built):
    built.file("debug.log").write_bytes(b"x\n")
    assert "extra    python/sglang/debug.log" in built.fails(1, "--refresh")


def test_a_changed_mode_outside_a_patch_is_refused(built):
    built.file("_version.py").chmod(0o755)
    assert "mode     python/sglang/_version.py" in built.fails(1, "--refresh")


def test_a_file_added_with_quilt_first_is_taken(built):
    built.quilt("add", "python/sglang/_version.py")
    built.file("_version.py").write_bytes(b"__version__ = 'x'\n")
    built.ok("--refresh")
    assert b"+__version__ = 'x'\n" in (built.root / "patches" / "add-module.patch").read_bytes()


def test_patch_and_build_that_disagree_are_not_mixed(built):
    built.file("srt/rows.py").write_bytes(b"ROWS = 2\n")
    path = built.root / "patches" / "add-module.patch"
    path.write_bytes(path.read_bytes().replace(b"ROWS = 1", b"ROWS = 3"))
    before = built.snapshot()
    output = built.fails(1, "--refresh")
    assert "patches/add-module.patch and build/ were both changed and disagree" in output
    assert built.snapshot() == before


def test_a_build_of_another_pin_is_not_taken(built):
    built.file("srt/rows.py").write_bytes(b"ROWS = 2\n")
    built.pin({**built.upstream, "extra.py": b"X = 1\n"})
    assert "on another upstream than the pin" in built.fails(1, "--refresh")
