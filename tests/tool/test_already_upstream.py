"""Already upstream is proven or not said; one member of a set does not decide for the others (accidents 5-7, 11)."""

import pytest
from forks import change
from upstreams import ENGINE, add, directory, judged, only_hunk

STOP = (b"        self.rows = []\n        return self.size\n", b"        self.rows = None\n        return self.size\n")
SEND = (b"def send(rows):\n    total = 0\n", b"def send(rows):\n    check(rows)\n    total = 0\n")


@pytest.fixture
def engine(fork):
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    return fork


def upstream(fork, tmp_path, content, **files):
    return directory(tmp_path / "next", {**fork.upstream, "engine.py": content, **files})


def test_a_patch_that_upstream_took_is_already_upstream(engine, tmp_path):
    add(engine, "both.patch", {"engine.py": change(ENGINE, STOP, SEND)})
    add(engine, "later.patch", {"other.py": b"def other():\n    return 2\n"}, depends="both.patch")
    found = judged(engine, upstream(engine, tmp_path, b"import sys\n" + change(ENGINE, STOP, SEND)))
    both = found["patches"]["both.patch"]
    assert [hunk["verdict"] for hunk in both["hunks"]] == ["already upstream"] * 2 and found["verdict"] == "drift"
    assert both["verdict"] == "already upstream" and "stands at line" in both["hunks"][0]["cause"]
    assert found["patches"]["later.patch"]["verdict"] == "clean"
    assert "python/sglang/engine.py::send" not in found["symbols"], "upstream took the change: that is no drift of it"


def test_half_of_a_patch_is_neither_dropped_nor_skipped(engine, tmp_path):
    add(engine, "both.patch", {"engine.py": change(ENGINE, STOP, SEND)})
    after = change(ENGINE, STOP, SEND, (b"    total = 0\n", b"    total = 1\n"))
    add(engine, "on-top.patch", {"engine.py": after}, depends="both.patch")
    found = judged(engine, upstream(engine, tmp_path, change(ENGINE, SEND)))["patches"]
    assert [hunk["verdict"] for hunk in found["both.patch"]["hunks"]] == ["clean", "already upstream"]
    assert found["both.patch"]["verdict"] == "conflict"
    assert found["both.patch"]["cause"] == "1 of its 2 hunks are already upstream, the rest applies"
    assert found["on-top.patch"]["verdict"] == "clean", "both halves are there"


def test_upstreamed_then_reverted_is_clean_again(engine, tmp_path):
    add(engine, "stop.patch", {"engine.py": change(ENGINE, STOP)})
    taken = directory(tmp_path / "taken", {**engine.upstream, "engine.py": change(ENGINE, STOP)})
    reverted = directory(tmp_path / "reverted", {**engine.upstream, "engine.py": ENGINE})
    assert only_hunk(engine, taken)["verdict"] == "already upstream"
    assert only_hunk(engine, reverted)["verdict"] == "clean"


BLOCK = b"".join(b"    step_%d(rows)\n" % n for n in range(1, 9))
TWICE = b"def f(rows):\n" + BLOCK + b"\n\ndef g(rows):\n" + BLOCK
ADDED = (b"    step_4(rows)\n", b"    step_4(rows)\n    step_four_and_a_half(rows)\n")


def test_forward_and_reverse_both_fit_is_ambiguous(fork, tmp_path):
    """Upstream took the change in `f`; the other block still takes the patch: a second copy, and no conflict."""
    fork.pin({**fork.upstream, "engine.py": TWICE})
    f, g = TWICE.split(b"\n\n")
    taken = change(f, ADDED) + b"\n\n" + g
    add(fork, "f.patch", {"engine.py": taken})
    hunk = only_hunk(fork, directory(tmp_path / "next", {**fork.upstream, "engine.py": taken}))
    assert hunk["verdict"] in ("ambiguous", "misplaced")
    assert "g" in hunk["cause"]


def test_both_ways_in_one_function_is_ambiguous(fork, tmp_path):
    once = b"def f(rows):\n" + BLOCK
    fork.pin({**fork.upstream, "engine.py": once})
    add(fork, "f.patch", {"engine.py": change(once, ADDED)})
    doubled = change(once, ADDED) + BLOCK
    hunk = only_hunk(fork, directory(tmp_path / "next", {**fork.upstream, "engine.py": doubled}))
    assert hunk["verdict"] == "ambiguous" and "both ways" in hunk["cause"]


def test_both_ways_out_of_order_is_ambiguous(fork, tmp_path):
    """Upstream swapped the two functions, so the second hunk cannot follow the first; and its result stands there."""
    f, g = b"def f(rows):\n" + BLOCK.replace(b"step", b"leap"), b"def g(rows):\n" + BLOCK
    fork.pin({**fork.upstream, "engine.py": f + g})
    add(fork, "both.patch", {"engine.py": change(f, (b"leap_4", b"leap_44")) + change(g, ADDED)})
    swapped = g + f + change(BLOCK, ADDED)
    (patch,) = judged(fork, directory(tmp_path / "next", {**fork.upstream, "engine.py": swapped}))["patches"].values()
    assert [hunk["verdict"] for hunk in patch["hunks"]] == ["offset", "ambiguous"]
    assert "both ways" in patch["hunks"][1]["cause"]


def test_added_lines_that_stand_there_already_are_not_added_again(fork, tmp_path):
    """Upstream put the same statement a few lines off, so the patch applies cleanly next to it."""
    once = b"def f(rows):\n" + BLOCK
    fork.pin({**fork.upstream, "engine.py": once})
    add(fork, "f.patch", {"engine.py": change(once, ADDED)})
    elsewhere = once + b"    step_four_and_a_half(rows)\n"
    hunk = only_hunk(fork, directory(tmp_path / "next", {**fork.upstream, "engine.py": elsewhere}))
    assert hunk["verdict"] == "ambiguous" and "stand at line 10 already" in hunk["cause"]


def test_the_result_in_another_function_is_no_proof(fork, tmp_path):
    """`f` was rewritten; a new function happens to have what the patch makes of `f`."""
    once = b"def f(rows):\n" + BLOCK
    fork.pin({**fork.upstream, "engine.py": once})
    add(fork, "f.patch", {"engine.py": change(once, ADDED)})
    rewritten = b"def f(rows):\n    pass\n\n\ndef g(rows):\n" + change(BLOCK, ADDED)
    hunk = only_hunk(fork, directory(tmp_path / "next", {**fork.upstream, "engine.py": rewritten}))
    assert hunk["verdict"] == "conflict" and "in another function" in hunk["cause"]


@pytest.mark.parametrize(
    ("there", "verdict"), [(None, "clean"), (b"NEW = 1\n", "already upstream"), (b"NEW = 2\n", "conflict")]
)
def test_a_new_file(fork, tmp_path, there, verdict):
    add(fork, "new.patch", {"new.py": b"NEW = 1\n"})
    files = {**fork.upstream, **({"new.py": there} if there else {})}
    assert only_hunk(fork, directory(tmp_path / "next", files))["verdict"] == verdict


def test_a_patch_on_a_file_of_the_series_that_upstream_has_otherwise(fork, tmp_path):
    add(fork, "new.patch", {"new.py": b"NEW = 1\n"})
    add(fork, "edit.patch", {"new.py": b"NEW = 1\nOLD = 0\n"}, depends="new.patch")
    found = judged(fork, directory(tmp_path / "next", {**fork.upstream, "new.py": b"NEW = 2\n"}))["patches"]
    assert (found["new.patch"]["verdict"], found["edit.patch"]["verdict"]) == ("conflict", "blocked")
    assert "nothing is overwritten" in found["new.patch"]["hunks"][0]["cause"]


def test_a_deleted_file(fork, tmp_path):
    add(fork, "delete.patch", {"other.py": None})
    assert only_hunk(fork, directory(tmp_path / "same", fork.upstream))["verdict"] == "clean"
    gone = {path: value for path, value in fork.upstream.items() if path != "other.py"}
    assert only_hunk(fork, directory(tmp_path / "gone", gone))["verdict"] == "already upstream"
    edited = {**fork.upstream, "other.py": b"def other():\n    return 9\n"}
    assert only_hunk(fork, directory(tmp_path / "edited", edited))["verdict"] == "conflict"


def test_a_mode_change(fork, tmp_path):
    add(fork, "mode.patch", {"other.py": (fork.upstream["other.py"], "100755")})
    assert only_hunk(fork, directory(tmp_path / "same", fork.upstream))["verdict"] == "clean"
    executable = {**fork.upstream, "other.py": (fork.upstream["other.py"], "100755")}
    assert only_hunk(fork, directory(tmp_path / "executable", executable))["verdict"] == "already upstream"


def test_a_patch_to_a_file_whose_mode_changed_is_clean_and_keeps_the_mode(fork, tmp_path):
    add(fork, "edit.patch", {"other.py": b"def other():\n    return 2\n"})
    executable = {**fork.upstream, "other.py": (fork.upstream["other.py"], "100755")}
    assert only_hunk(fork, directory(tmp_path / "executable", executable))["verdict"] == "clean"
