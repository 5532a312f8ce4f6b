"""A patch applies where its lines are, or not at all (accidents 1, 2, 4 and 7)."""

import shutil

from forks import NUMBERS, change

from patchseries import programs

# Two functions alike but for their names: with fuzz a hunk for the first lands in the second.
TWINS = b"".join(
    b"def f%d(x):\n    a = x + 1\n    b = a * 2\n    c = b - 3\n    return c\n\n\n" % number for number in range(2)
)


def test_a_hunk_with_a_changed_context_line_is_refused(fork):
    fork.add_change("edit.patch", linear_py=change(NUMBERS, (b"value_20 = 20\n", b"value_20 = 0\n")))
    fork.pin({**fork.upstream, "linear.py": change(NUMBERS, (b"value_18 = 18\n", b"renamed = 18\n"))})
    output = fork.fails(2, "--update-pin")
    assert "edit.patch does not apply: python/sglang/linear.py, hunk 1 of 1" in output


def test_fuzz_would_have_moved_it_into_another_function(fork, tmp_path):
    edited = change(
        TWINS, (b"def f0(x):\n    a = x + 1\n    b = a * 2\n", b"def f0(x):\n    a = x + 1\n    b = a * 9\n")
    )
    fork.pin({**fork.upstream, "twins.py": TWINS})
    patch = fork.add("twins.patch", fork.patch_between("twins.patch", {"twins.py": TWINS}, {"twins.py": edited}))
    drifted = change(
        TWINS, (b"def f0(x):\n    a = x + 1\n    b = a * 2\n    c", b"def f0(x):\n    a = x\n    b = a\n    c")
    )
    tree = tmp_path / "loose"
    (tree / "python" / "sglang").mkdir(parents=True)
    (tree / "python" / "sglang" / "twins.py").write_bytes(drifted)
    loose = programs.run(["patch", "-p1", f"--input={patch}"], tree)
    moved = (tree / "python" / "sglang" / "twins.py").read_bytes()
    assert loose.returncode == 0 and b"b = a * 9" in moved[moved.index(b"def f1") :], "the accident itself"
    fork.pin({**fork.upstream, "twins.py": drifted})
    fork.fails(2, "--update-pin")


def test_quilt_in_the_edit_environment_has_no_fuzz_to_bake_in(built):
    built.quilt("pop", "-a")
    drifted = change(NUMBERS, (b"value_3 = 3\n", b"drifted = 3\n"))
    built.file("linear.py").write_bytes(drifted)
    patch = built.root / "patches" / "edit-linear.patch"
    before = patch.read_bytes()
    assert "does not apply" in built.quilt("push", "-a", "--refresh", status=1)
    assert patch.read_bytes() == before


def test_fuzz_baked_in_by_another_quilt_is_not_canonical(built):
    """`push --refresh` with the default fuzz rewrites the context; the pin and lint both notice."""
    built.quilt("pop", "-a")
    built.file("linear.py").write_bytes(change(NUMBERS, (b"value_3 = 3\n", b"drifted = 3\n")))
    environment = {**programs.QUILT_ENVIRONMENT, "QUILT_PUSH_ARGS": ""}
    done = programs.run(["quilt", "push", "-a", "--refresh"], built.build, **environment)
    assert done.returncode == 0 and b"fuzz" in done.stdout, "the accident itself"
    shutil.rmtree(built.build)
    built.fails(2)
    built.fails(2, "--lint")


def test_an_applied_patch_is_not_unapplied(built):
    """Upstream took the patch: `patch -t` would take it out again and exit 0."""
    built.pin({**built.upstream, "linear.py": built.patched["linear.py"]})
    output = built.fails(2, "--update-pin")
    assert "edit-linear.patch does not apply" in output


def test_an_added_block_is_not_added_twice(fork):
    block = b"def added():\n    return 0\n\n\n"
    base = fork.upstream["other.py"]
    fork.add_change("add.patch", other_py=block + base)
    fork.pin({**fork.upstream, "other.py": block + block + base})
    before = fork.snapshot()
    status, output = fork.run("--update-pin")
    assert status == 2 and "add.patch" in output
    assert fork.snapshot() == before
