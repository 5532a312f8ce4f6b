"""A series that applies cleanly over a changed meaning is not clean."""

import pytest
from forks import change
from upstreams import ENGINE, add, check, directory, judged


@pytest.fixture
def fork(fork):
    """A fork of one patch, which watches a function and a method, and edits `Engine.stop`."""
    fork.pin({**fork.upstream, "engine.py": ENGINE, "limits.py": b"LIMIT = 4\n"})
    edited = change(ENGINE, (b"        self.rows = []\n        return self.size\n", b"        return self.size\n"))
    watched = ("engine.py::split", "engine.py::Engine.start", "limits.py::LIMIT", "limits.py")
    add(fork, "stop.patch", {"engine.py": edited}, watches="".join(f"\n python/sglang/{each}" for each in watched))
    return fork


def state(fork, tmp_path, engine=ENGINE, limits=b"LIMIT = 4\n", **more):
    files = {**fork.upstream, "engine.py": engine, "limits.py": limits, **more}
    found = judged(fork, directory(tmp_path / "next", {p: c for p, c in files.items() if c is not None}))
    return found, {name.partition("sglang/")[2]: symbol for name, symbol in found["symbols"].items()}


def test_all_the_same(fork, tmp_path):
    found, symbols = state(fork, tmp_path)
    assert found["verdict"] == "clean" and {symbol["verdict"] for symbol in symbols.values()} == {"same"}
    assert symbols["engine.py::Engine.stop"]["relation"] == "edits"
    assert symbols["engine.py::split"]["relation"] == "watches" and symbols["engine.py::split"]["patches"] == [
        "stop.patch"
    ]


def test_a_changed_symbol_is_drift_though_every_hunk_is_clean(fork, tmp_path):
    found, symbols = state(fork, tmp_path, change(ENGINE, (b"len(rows) // size", b"-(-len(rows) // size)")))
    assert found["patches"]["stop.patch"]["verdict"] == "clean" and found["verdict"] == "drift"
    assert (
        symbols["engine.py::split"]["verdict"] == "changed"
        and "+1 -1 lines of code" in symbols["engine.py::split"]["cause"]
    )
    assert symbols["engine.py::Engine.start"]["verdict"] == "same"


def test_comments_docstrings_and_layout_do_not_count(fork, tmp_path):
    text = b'def split(\n    rows,\n    size,\n):\n    """Split."""\n    # evenly\n    step = (len(rows) // size)\n'
    engine = change(ENGINE, (b"def split(rows, size):\n    step = len(rows) // size\n", text))
    found, symbols = state(fork, tmp_path, engine)
    assert found["verdict"] == "clean" and symbols["engine.py::split"]["verdict"] == "same"


def test_a_default_an_annotation_and_a_decorator_do_count(fork, tmp_path):
    for number, head in enumerate(
        (b"def split(rows, size=2):", b"def split(rows: list, size):", b"@cache\ndef split(rows, size):")
    ):
        engine = change(ENGINE, (b"def split(rows, size):", head))
        _found, symbols = state(fork, tmp_path / str(number), engine)
        assert symbols["engine.py::split"]["verdict"] == "changed"


def test_a_constant_and_a_whole_file(fork, tmp_path):
    _found, symbols = state(fork, tmp_path, limits=b"LIMIT = 8\n")
    assert symbols["limits.py::LIMIT"]["verdict"] == symbols["limits.py"]["verdict"] == "changed"


def test_moved_and_changed(fork, tmp_path):
    start, end = ENGINE.index(b"def split"), ENGINE.index(b"def send")
    moved = b"def split(rows, size):\n    return rows[:1]\n"
    found, symbols = state(fork, tmp_path, ENGINE[:start] + ENGINE[end:], **{"srt/rows.py": moved})
    assert found["verdict"] == "drift" and symbols["engine.py::split"]["verdict"] == "moved"
    assert "now in `python/sglang/srt/rows.py`, and changed" in symbols["engine.py::split"]["cause"]


def test_gone(fork, tmp_path):
    start, end = ENGINE.index(b"def split"), ENGINE.index(b"def send")
    found, symbols = state(fork, tmp_path, ENGINE[:start] + ENGINE[end:])
    assert found["verdict"] == "drift" and symbols["engine.py::split"]["verdict"] == "gone"


def test_a_function_of_that_name_that_was_elsewhere_before_is_not_where_it_moved(fork, tmp_path):
    fork.pin({**fork.upstream, "srt/other.py": b"def split(text):\n    return text\n"})
    start, end = ENGINE.index(b"def split"), ENGINE.index(b"def send")
    changed = b"def split(text):\n    return list(text)\n"
    _found, symbols = state(fork, tmp_path, ENGINE[:start] + ENGINE[end:], **{"srt/other.py": changed})
    assert symbols["engine.py::split"]["verdict"] == "gone"


def test_what_a_patch_edits_is_compared_too(fork, tmp_path):
    engine = change(ENGINE, (b"    def stop(self):\n", b"    def stop(self, now=True):\n"))
    found, symbols = state(fork, tmp_path, engine)
    assert symbols["engine.py::Engine.stop"]["verdict"] == "changed" and found["verdict"] != "clean"


def test_a_symbol_defined_in_both_branches_is_compared_in_both(fork, tmp_path):
    both = b"if True:\n    def pick(x):\n        return x\nelse:\n    def pick(x):\n        return None\n"
    fork.pin({**fork.upstream, "pick.py": both})
    add(fork, "other.patch", {"other.py": b"def other():\n    return 3\n"}, watches="python/sglang/pick.py::pick")
    status, _found = check(
        fork, directory(tmp_path / "next", {**fork.upstream, "pick.py": both.replace(b"None", b"0")})
    )
    assert status == 1
