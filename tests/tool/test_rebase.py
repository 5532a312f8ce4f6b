"""A rebase moves every patch, stops where a person is needed, and writes all or nothing (accident 15)."""

import os
import re

import pytest
from forks import NUMBERS, change, git, write_wheel
from upstreams import ENGINE, add, history

from patchseries import patchfile, rebase, wheel

STOP = (b"        self.rows = []\n        return self.size\n", b"        self.rows = None\n        return self.size\n")
SPLIT = (b"    step = len(rows) // size\n", b"    step = -(-len(rows) // size)\n")


@pytest.fixture
def fork(fork):
    """A fork of three patches: an edit of a class, one of a function, and a new file with an edit."""
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "stop.patch", {"engine.py": change(ENGINE, STOP)}, watches="python/sglang/engine.py::send")
    both = change(ENGINE, STOP, SPLIT)
    add(fork, "split.patch", {"engine.py": both})
    add(fork, "new.patch", {"new.py": b"NEW = 1\n", "other.py": b"def other():\n    return 2\n"}, depends="split.patch")
    fork.ok("--refresh")
    fork.ok("--update-pin")
    return fork


def release(fork, version, files):
    """A later release in the cache, as if it had been downloaded."""
    name = f"sglang-{version}-{wheel.python_tag()}-{wheel.python_tag()}-linux_{os.uname().machine}.whl"
    return write_wheel(fork.cache / "wheels" / name, {**fork.upstream, **files})


def patches(fork):
    return {path.name: patchfile.read(path) for path in (fork.root / "patches").iterdir()}


def changed_lines(patch):
    return [line for diff in patch.files for hunk in diff.hunks for line in hunk.lines if line[:1] in b"+-"]


RECEIVE = (
    b"    count = 0\n    for row in rows:\n        total += row\n",
    b"    count = 0\n    for row in rows:\n        total += 2 * row\n",
)
ABOVE = (b"import os\n", b"import os\nimport sys\n\nLIMIT = 1\n")
NEAR = (b"            send(rows)\n", b"            send(list(rows))\n")
CLASH = (b"    step = len(rows) // size\n", b"    step = len(rows) // max(size, 1)\n")


def test_a_clean_rebase(fork):
    before = patches(fork)
    release(fork, "1.2.4", {"engine.py": change(ENGINE, ABOVE, NEAR)})
    output = fork.ok("--rebase", "1.2.4")
    assert "the series is on wheel sglang 1.2.4" in output
    after = patches(fork)
    assert {n: changed_lines(p) for n, p in after.items()} == {n: changed_lines(p) for n, p in before.items()}
    assert after["stop.patch"].files[0].hunks[0].old_start == before["stop.patch"].files[0].hunks[0].old_start + 3
    pin = (fork.root / "upstream.toml").read_text()
    assert 'release = "1.2.4"' in pin and 'tag = "v1.2.4"' in pin and "1.2.3" not in pin
    assert not (fork.root / "rebase").exists() and not (fork.root / "RETIRED.md").exists()
    assert "clean" in fork.ok("--check")
    assert "1.2.4+fork.1" in fork.ok()
    assert fork.file("engine.py").read_bytes() == change(ENGINE, ABOVE, NEAR, STOP, SPLIT)
    assert "no patch rewritten" in fork.ok("--refresh")


def test_a_conflict_is_resolved_and_the_rebase_goes_on(fork):
    before = fork.snapshot()
    release(fork, "1.2.4", {"engine.py": change(ENGINE, CLASH)})
    output = fork.fails(2, "--rebase", "1.2.4")
    assert "split.patch conflicts with wheel sglang 1.2.4" in output and "rebase/tree" in output
    assert {path: e for path, e in fork.snapshot().items() if not path.startswith("rebase/")} == before
    assert "is under way, 1 of 3 patches are through" in fork.run("--status")[1]
    place = fork.root / "rebase" / "tree" / "python" / "sglang" / "engine.py"
    text = place.read_bytes()
    for label in (b"<<<<<<< upstream\n", b"||||||| the pin\n", b">>>>>>> split.patch\n"):
        assert label in text
    assert "conflict markers are left in 1 files" in fork.fails(2, "--continue")
    mine = b"    step = -(-len(rows) // max(size, 1))\n"
    place.write_bytes(re.sub(rb"<{7}.*?>{7} split.patch\n", mine, text, flags=re.DOTALL))
    output = fork.fails(1, "--continue")
    assert "split.patch: 4 differences" in output and "--accept split.patch" in output
    assert "lost    -    step = len(rows) // size  (in split)" in output
    assert "gained  +    step = -(-len(rows) // max(size, 1))  (in split)" in output
    assert {path: e for path, e in fork.snapshot().items() if not path.startswith("rebase/")} == before
    fork.ok("--continue", "--accept", "split.patch")
    fork.ok()
    assert b"step = -(-len(rows) // max(size, 1))" in fork.file("engine.py").read_bytes()
    assert b"self.rows = None" in fork.file("engine.py").read_bytes()


def test_a_lost_hunk_is_noticed(fork):
    """The resolution forgot half of the patch; everything applies."""
    edited = change(ENGINE, STOP, SPLIT, (b"    count = 0\n", b"    total = 0\n"))
    add(fork, "two.patch", {"engine.py": change(edited, (b"import os\n", b"import os\nimport re\n"))})
    fork.ok("--refresh")
    fork.ok("--update-pin")
    release(fork, "1.2.4", {"engine.py": change(ENGINE, (b"    count = 0\n", b"    total = None\n"))})
    fork.fails(2, "--rebase", "1.2.4")
    place = fork.root / "rebase" / "tree" / "python" / "sglang" / "engine.py"
    text = re.sub(rb"<{7}.*?>{7} two.patch\n", b"    total = 0\n", place.read_bytes(), flags=re.DOTALL)
    place.write_bytes(text.replace(b"import re\n", b""))
    output = fork.fails(1, "--continue")
    assert "lost    +import re  (in module level)" in output


def test_abort_restores_everything(fork):
    before = fork.snapshot()
    release(fork, "1.2.4", {"engine.py": change(ENGINE, CLASH)})
    fork.fails(2, "--rebase", "1.2.4")
    assert "as before" in fork.ok("--abort")
    assert fork.snapshot() == before


def test_patches_that_upstream_took_are_retired(fork):
    release(fork, "1.2.4", {"engine.py": change(ENGINE, ABOVE, SPLIT)})
    output = fork.ok("--rebase", "1.2.4")
    assert "split.patch: wheel sglang 1.2.4" in output and "has it already" in output
    assert sorted(patches(fork)) == ["new.patch", "stop.patch"]
    assert (fork.root / "series").read_text() == "stop.patch\nnew.patch\n"
    log = (fork.root / "RETIRED.md").read_text()
    assert "## split.patch, at sglang wheel sglang 1.2.4" in log and "changes nothing" in log
    assert patches(fork)["new.patch"].fields["Depends"] == "none"
    fork.ok()
    release(fork, "1.2.5", {"engine.py": change(ENGINE, SPLIT, STOP)})
    fork.ok("--rebase", "1.2.5")
    grown = (fork.root / "RETIRED.md").read_text()
    assert grown.startswith(log) and "## stop.patch" in grown


def test_half_of_a_patch_upstream_has_to_be_accepted(fork):
    release(fork, "1.2.4", {"new.py": b"NEW = 1\n"})
    output = fork.fails(1, "--rebase", "1.2.4")
    assert "new.patch: 2 differences" in output and "lost    +NEW = 1" in output
    fork.ok("--continue", "--accept", "new.patch")
    assert [diff.path for diff in patches(fork)["new.patch"].files] == ["python/sglang/other.py"]


def test_a_renamed_file_is_followed(fork):
    fork.upstream = {path: content for path, content in fork.upstream.items() if path != "engine.py"}
    release(fork, "1.2.4", {"srt/motor.py": change(ENGINE, (b"    count = 0\n", b"    total = 0\n"))})
    fork.ok("--rebase", "1.2.4")
    assert patches(fork)["stop.patch"].paths == ("python/sglang/srt/motor.py",)


def test_a_file_that_upstream_removed_is_a_conflict(fork):
    fork.upstream = {path: content for path, content in fork.upstream.items() if path != "other.py"}
    release(fork, "1.2.4", {})
    output = fork.fails(2, "--rebase", "1.2.4")
    assert "python/sglang/other.py" in output and "modify/delete" in output
    (fork.root / "rebase" / "tree" / "python" / "sglang" / "other.py").unlink()
    assert "new.patch" in fork.fails(1, "--continue")


def test_a_move_into_another_function_has_to_be_accepted(fork):
    """The merge is clean; the lines are in another function now."""
    add(fork, "receive.patch", {"engine.py": change(fork.patched["engine.py"], RECEIVE)})
    fork.ok("--update-pin")
    release(fork, "1.2.4", {"engine.py": change(ENGINE, (b"def receive(rows):\n", b"def accept(rows):\n"))})
    output = fork.fails(1, "--rebase", "1.2.4")
    assert "moved   +        total += 2 * row  (from receive to accept)" in output


def test_changed_watched_symbols_are_said(fork):
    release(fork, "1.2.4", {"engine.py": change(ENGINE, (b"    total = 0\n", b"    total = 1\n"))})
    assert "read python/sglang/engine.py::send: changed" in fork.ok("--rebase", "1.2.4")


def test_onto_a_wheel_file(fork, tmp_path):
    path = release(fork, "1.2.4", {"engine.py": change(ENGINE, ABOVE)})
    there = path.rename(tmp_path / path.name)
    fork.ok("--rebase", str(there))
    there.unlink()
    assert "1.2.4+fork.1" in fork.ok()


def test_onto_a_commit(fork, tmp_path):
    files = {**fork.upstream, "engine.py": change(ENGINE, ABOVE)}
    clone = history(tmp_path / "clone", ("Pin", fork.upstream), ("Above", files))
    fork.ok("--rebase", "main", "--source", str(clone))
    commit = git(clone, "rev-parse", "main")
    assert f'commit = "{commit}"' in (fork.root / "upstream.toml").read_text()
    assert "1.2.3+fork.2" in fork.ok() and "clean" in fork.ok("--check")


@pytest.mark.parametrize("point", ["series", "upstream.toml"])
def test_a_kill_while_writing_is_recovered(fork, monkeypatch, point):
    before = fork.snapshot()
    release(fork, "1.2.4", {"engine.py": change(ENGINE, ABOVE, SPLIT)})
    copy = rebase.shutil.copy

    def dies(source, target):
        if str(source).endswith(f"rebase/new/{point}"):
            raise KeyboardInterrupt
        return copy(source, target)

    for command in ("--abort", "--continue"):
        monkeypatch.setattr(rebase.shutil, "copy", dies)
        assert fork.run("--rebase", "1.2.4")[0] != 0
        monkeypatch.undo()
        assert fork.snapshot() != before
        fork.ok(command)
        if command == "--abort":
            assert fork.snapshot() == before
    assert "clean" in fork.ok("--check") and sorted(patches(fork)) == ["new.patch", "stop.patch"]


def test_a_kill_between_patches_is_recovered(fork, monkeypatch):
    release(fork, "1.2.4", {"engine.py": change(ENGINE, ABOVE)})
    merge = rebase.Store.merge

    def dies(store, base, ours, theirs, label):
        if label == "split.patch":
            raise KeyboardInterrupt
        return merge(store, base, ours, theirs, label)

    monkeypatch.setattr(rebase.Store, "merge", dies)
    assert fork.run("--rebase", "1.2.4")[0] != 0
    monkeypatch.undo()
    fork.ok("--continue")
    assert "clean" in fork.ok("--check")


def test_mistakes_are_said(fork, tmp_path):
    assert "no rebase is under way" in fork.fails(3, "--continue")
    assert "no rebase is under way" in fork.fails(3, "--abort")
    assert "has no such patch" in fork.fails(3, "--rebase", "1.2.4", "--accept", "nowhere.patch")
    assert "already" in fork.fails(3, "--rebase", "1.2.3")
    release(fork, "1.2.4", {"engine.py": change(ENGINE, CLASH)})
    fork.fails(2, "--rebase", "1.2.4")
    assert "is under way" in fork.fails(3, "--rebase", "1.2.4")
    (fork.root / "series").write_text("stop.patch\nnew.patch\nsplit.patch\n")
    fork.run("--continue")
    (fork.root / "series").write_text("stop.patch\nsplit.patch\nnew.patch\n")
    fork.ok("--abort")
    (fork.root / "rebase").mkdir()
    (fork.root / "rebase" / "mine").write_text("notes")
    assert "was not made by this tool" in fork.fails(3, "--rebase", "1.2.4")
    assert (fork.root / "rebase" / "mine").read_text() == "notes"


def test_patches_changed_meanwhile_are_noticed(fork):
    release(fork, "1.2.4", {"engine.py": change(ENGINE, CLASH)})
    fork.fails(2, "--rebase", "1.2.4")
    path = fork.root / "patches" / "new.patch"
    path.write_bytes(path.read_bytes().replace(b"NEW = 1", b"NEW = 3"))
    assert "changed since the rebase began" in fork.fails(1, "--continue")


def test_leftovers_of_a_merge_tool_do_not_get_into_a_patch(fork):
    release(fork, "1.2.4", {"engine.py": change(ENGINE, CLASH)})
    fork.fails(2, "--rebase", "1.2.4")
    place = fork.root / "rebase" / "tree" / "python" / "sglang" / "engine.py"
    place.with_name("engine.py.orig").write_bytes(place.read_bytes())
    place.write_bytes(change(ENGINE, STOP, SPLIT))
    fork.fails(2, "--continue")
    place.with_name("engine.py.orig").write_bytes(b"x\n")
    assert "leftovers" in fork.fails(2, "--continue")


def test_crlf_and_modes_survive(fork):
    dos = NUMBERS.replace(b"\n", b"\r\n")
    fork.pin({**fork.upstream, "dos.py": (dos, "100755")})
    fork.patched["dos.py"] = (dos, "100755")
    edited = change(dos, (b"value_9 = 9\r\n", b"value_9 = 90\r\n"))
    add(fork, "dos.patch", {"dos.py": (edited, "100755")})
    fork.ok("--update-pin")
    release(fork, "1.2.4", {"dos.py": (b"# top\r\n" + dos, "100755")})
    fork.ok("--rebase", "1.2.4")
    fork.ok()
    assert fork.file("dos.py").read_bytes() == b"# top\r\n" + edited
    assert fork.file("dos.py").stat().st_mode & 0o100
