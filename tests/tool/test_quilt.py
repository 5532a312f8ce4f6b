"""quilt is the human's tool: what it makes of the series is the tree, and editing with it works as people expect."""

import os
import shutil

from forks import HEADER

from patchseries import build, programs
from patchseries.listing import scan


def test_quilt_alone_makes_the_same_tree(built, tmp_path):
    """`quilt push -a --fuzz=0` on the pristine tree, by hand."""
    record = build.read_record(built.build)
    tree = built.root / "by-hand"
    tree.mkdir()
    built.store.export(record.trees[0], tree)
    done = programs.run(["quilt", "push", "-a", "--fuzz=0"], tree, **programs.QUILT_ENVIRONMENT)
    assert done.returncode == 0
    assert scan(tree, skip=lambda path: path == ".pc") == built.store.listing(record.trees[-1])


def test_a_quilt_that_makes_another_tree_is_found_out(built, tmp_path, monkeypatch):
    """The tree in build/ is compared after the push, whatever quilt said of it."""
    before = built.file("linear.py").read_bytes()
    built.quilt("pop", "-a")
    broken = tmp_path / "bin" / "quilt"
    broken.parent.mkdir()
    broken.write_text(f'#!/bin/sh\n{shutil.which("quilt")} "$@"\necho surprise >> python/sglang/linear.py\n')
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    output = built.fails(2)
    assert "quilt made another tree" in output and "changed  python/sglang/linear.py" in output
    monkeypatch.undo()
    built.ok()
    assert built.file("linear.py").read_bytes() == before


def test_every_patch_is_pushed(built):
    assert built.quilt("applied").split() == ["edit-linear.patch", "add-module.patch"]
    assert "File series fully applied" in built.quilt("push", status=2)


def test_pop_and_push_walk_the_chain(built):
    record = build.read_record(built.build)
    for tree in (record.trees[1], record.trees[0]):
        built.quilt("pop")
        assert build.differences(built.store, build.contents(built.build, record), tree) == []
    built.quilt("push", "-a")
    assert "up to date" in built.ok()


def test_a_new_patch(built):
    built.quilt("new", "say-hello.patch")
    built.quilt("add", "python/sglang/other.py", "python/sglang/srt/hello.py")
    built.file("other.py").write_bytes(b"def other():\n    return 7\n")
    built.file("srt/hello.py").write_bytes(b"HELLO = 1\n")
    assert "say-hello.patch rewritten" in built.ok("--refresh")
    path = built.root / "patches" / "say-hello.patch"
    path.write_bytes(HEADER.format(name="Say hello").encode() + b"\n\n" + path.read_bytes())
    assert (built.root / "series").read_text().split()[-1] == "say-hello.patch"
    assert "no patch rewritten" in built.ok("--refresh")
    built.make()
    built.ok("--lint")
    assert built.file("srt/hello.py").read_bytes() == b"HELLO = 1\n"


def test_a_new_patch_that_quilt_refreshed(built):
    built.quilt("new", "say-hello.patch")
    built.quilt("add", "python/sglang/srt/hello.py")
    built.file("srt/hello.py").write_bytes(b"HELLO = 1\n")
    built.quilt("refresh")
    path = built.root / "patches" / "say-hello.patch"
    by_quilt = path.read_bytes()
    built.ok("--refresh")
    assert path.read_bytes() == by_quilt


def test_a_new_patch_in_the_middle(built):
    built.quilt("pop")
    built.quilt("new", "middle.patch")
    built.quilt("add", "python/sglang/linear.py")
    built.file("linear.py").write_bytes(built.file("linear.py").read_bytes() + b"last = 1\n")
    built.ok("--refresh")
    built.make()
    assert (built.root / "series").read_text().split() == ["edit-linear.patch", "middle.patch", "add-module.patch"]
    assert built.file("linear.py").read_bytes().endswith(b"last = 1\n") and built.file("srt/rows.py").exists()


def test_an_edit_of_an_earlier_patch(built):
    built.quilt("pop")
    built.file("linear.py").write_bytes(built.file("linear.py").read_bytes().replace(b"= 50\n", b"= 55\n"))
    built.quilt("refresh")
    built.ok("--refresh")
    built.make()
    assert b"+value_5 = 55\n" in (built.root / "patches" / "edit-linear.patch").read_bytes()
    assert b"value_5 = 55\n" in built.file("linear.py").read_bytes()


def test_an_edit_that_a_later_patch_stands_on_is_a_conflict(fork):
    fork.add_change("first.patch", other_py=b"def other():\n    return 2\n")
    fork.add_change("second.patch", other_py=b"def other():\n    return 3\n")
    fork.make()
    fork.quilt("pop")
    fork.file("other.py").write_bytes(b"def other():\n    return 9\n")
    before = fork.snapshot()
    assert "second.patch does not apply" in fork.fails(2, "--refresh")
    assert fork.snapshot() == before


def test_a_patch_that_was_deleted(built):
    built.quilt("delete", "-r", "add-module.patch")
    built.ok("--refresh")
    built.make()
    assert not built.file("srt/rows.py").exists()


def test_a_patch_that_came_to_nothing_is_said(built):
    built.quilt("new", "nothing.patch")
    assert "nothing.patch changes nothing" in built.fails(1, "--refresh")


def test_the_series_and_pc_disagree_after_a_pull(built):
    """Another order in `series`, an edit in build/: the tool does not guess."""
    built.file("srt/rows.py").write_bytes(b"ROWS = 2\n")
    (built.root / "series").write_text("add-module.patch\nedit-linear.patch\n")
    assert "are not the first of" in built.fails(1, "--refresh")


def test_edit_prints_the_environment_off_a_terminal(built):
    output = built.ok("--edit")
    assert f"cd {built.build}\n" in output
    for line in ("export QUILT_PATCHES=../patches", "export QUILT_SERIES=../series", "export LC_ALL=C"):
        assert line in output
    assert "'-p ab --no-timestamps --no-index --sort'" in output and "QUILT_PUSH_ARGS=--fuzz=0" in output


def test_edit_needs_a_build(fork):
    assert "no build/ to edit" in fork.fails(3, "--edit")
