"""What upstream renamed, split or moved is named, and no question is asked (accident 12)."""

import pytest
from forks import change
from upstreams import ENGINE, add, directory, judged, only_hunk

STOP = (b"        self.rows = []\n        return self.size\n", b"        self.rows = None\n        return self.size\n")


@pytest.fixture
def engine(fork):
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "stop.patch", {"engine.py": change(ENGINE, STOP)}, watches="python/sglang/engine.py::split")
    return fork


def without(fork, **files):
    kept = {path: value for path, value in fork.upstream.items() if path != "engine.py"}
    return {**kept, **{path.replace("__", "/") + ".py": content for path, content in files.items()}}


def test_a_rename_with_edits(engine, tmp_path):
    renamed = change(
        ENGINE, (b"    print(total)\n    return total\n\n\ndef receive", b"    return total\n\n\ndef receive")
    )
    found = judged(engine, directory(tmp_path / "next", without(engine, srt__motor=renamed)))
    (hunk,) = found["patches"]["stop.patch"]["hunks"]
    assert hunk["verdict"] == "conflict"
    assert (
        "`python/sglang/engine.py` is renamed to `python/sglang/srt/motor.py`, where 1 of 1 hunks match"
        in hunk["cause"]
    )
    split = found["symbols"]["python/sglang/engine.py::split"]
    assert (split["verdict"], split["cause"]) == ("moved", "now in `python/sglang/srt/motor.py`")


def test_a_split_file(engine, tmp_path):
    head, tail = ENGINE.split(b"def split")
    padding = b"".join(b"FILLER_%d = %d\n" % (n, n) for n in range(40))
    files = without(engine, motor=padding + head, rows=padding + b"def split" + tail)
    found = judged(engine, directory(tmp_path / "next", files))
    (hunk,) = found["patches"]["stop.patch"]["hunks"]
    assert hunk["verdict"] == "conflict" and "does not exist" in hunk["cause"]
    assert "`Engine.stop` is now in `python/sglang/motor.py`" in hunk["cause"]
    assert found["symbols"]["python/sglang/engine.py::split"]["cause"] == "now in `python/sglang/rows.py`"


def test_a_symbol_moved_to_a_new_module(engine, tmp_path):
    start, rest = ENGINE.index(b"class Engine"), ENGINE.index(b"def split")
    motor, left = (
        b'"""Motor."""\n\n\n' + ENGINE[start:rest],
        ENGINE[:start] + b"from .motor import Engine\n" + ENGINE[rest:],
    )
    hunk = only_hunk(engine, directory(tmp_path / "next", without(engine, engine=left, motor=motor)))
    assert hunk["verdict"] == "conflict" and "`Engine.stop` is now in `python/sglang/motor.py`" in hunk["cause"]


def test_a_removed_symbol(engine, tmp_path):
    start, rest = ENGINE.index(b"class Engine"), ENGINE.index(b"def split")
    hunk = only_hunk(engine, directory(tmp_path / "next", without(engine, engine=ENGINE[:start] + ENGINE[rest:])))
    assert hunk["verdict"] == "conflict" and "`Engine` is gone" in hunk["cause"]


def test_a_removed_file(engine, tmp_path):
    found = judged(engine, directory(tmp_path / "next", without(engine)))
    (hunk,) = found["patches"]["stop.patch"]["hunks"]
    assert hunk["verdict"] == "conflict" and "does not exist, and no file is like it" in hunk["cause"]
    assert found["symbols"]["python/sglang/engine.py::split"]["verdict"] == "gone"


def test_a_deletion_of_a_file_that_upstream_renamed_is_not_done(fork, tmp_path):
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "delete.patch", {"engine.py": None})
    hunk = only_hunk(fork, directory(tmp_path / "next", without(fork, motor=ENGINE)))
    assert hunk["verdict"] == "conflict" and "renamed to `python/sglang/motor.py`" in hunk["cause"]


def test_a_rename_that_upstream_made_too(fork, tmp_path):
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "rename.patch", {"engine.py": None, "motor.py": ENGINE})
    assert only_hunk(fork, directory(tmp_path / "same", fork.upstream))["verdict"] == "clean"
    assert only_hunk(fork, directory(tmp_path / "next", without(fork, motor=ENGINE)))["verdict"] == "already upstream"
    elsewhere = only_hunk(fork, directory(tmp_path / "elsewhere", without(fork, machine=ENGINE)))
    assert elsewhere["verdict"] == "conflict" and "renamed to `python/sglang/machine.py`" in elsewhere["cause"]
