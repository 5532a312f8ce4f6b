"""The first commit or release where a patch stops being clean."""

import os

import pytest
from forks import change, git, write_wheel
from upstreams import ENGINE, add, directory, history

from patchseries import wheel

STOP = (b"        self.rows = []\n        return self.size\n", b"        self.rows = None\n        return self.size\n")
COUNT = (b"    count = 0\n", b"    count = 10\n")
CHANGES = (
    ("Import sys", (b"import os\n", b"import os\nimport sys\n")),
    ("Split evenly", (b"    step = len(rows) // size\n", b"    step = -(-len(rows) // size)\n")),
    ("Count from one", COUNT[:1] + (b"    count = 1\n",)),
    ("Return the rows", (b"        return self.size\n", b"        return self.rows\n")),
)


@pytest.fixture
def fork(fork):
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "stop.patch", {"engine.py": change(ENGINE, STOP)})
    add(fork, "count.patch", {"engine.py": change(ENGINE, STOP, COUNT)})
    add(fork, "other.patch", {"other.py": b"def other():\n    return 2\n"}, watches="python/sglang/engine.py::split")
    add(fork, "new.patch", {"new.py": b"NEW = 1\n"})
    return fork


def versions(fork):
    content = ENGINE
    yield "Pin", {**fork.upstream, "engine.py": content}
    for subject, edit in CHANGES:
        content = change(content, edit)
        yield subject, {**fork.upstream, "engine.py": content}
        yield f"Nothing after {subject}", {**fork.upstream, "engine.py": content, "notes.py": subject.encode()}


def rows(output):
    return {line.split()[0]: line for line in output.splitlines() if ".patch " in line}


def test_over_commits(fork, tmp_path):
    clone = history(tmp_path / "clone", *versions(fork))
    output = fork.fails(2, "--bisect", "main", "--source", str(clone))
    found = rows(output)
    assert found["stop.patch"].count("(") == 2
    assert "(Import sys)" in found["stop.patch"] and "offset" in found["stop.patch"]
    assert "(Return the rows)" in found["stop.patch"]
    assert "(Import sys)" in found["count.patch"] and "(Count from one)   conflict" in found["count.patch"]
    assert "(Split evenly)" in found["other.patch"] and "split changed" in found["other.patch"]
    assert found["new.patch"].split() == ["new.patch"]
    commit = git(clone, "log", "--format=%H", "--grep=^Count from one", "-1")
    assert commit[:12] in found["count.patch"]
    assert "5 commits from the pin" in output, "the four that touch what the series does, and the last one"


def test_over_commits_back_in_time(fork, tmp_path):
    clone = history(tmp_path / "clone", *versions(fork))
    git(clone, "tag", "--force", "v1.2.3", "main")
    git(clone, "tag", "old", git(clone, "log", "--format=%H", "--grep=^Pin", "-1"))
    for path in (fork.root / "patches").iterdir():
        path.unlink()
    (fork.root / "series").write_text("")
    *_rest, (_subject, files) = versions(fork)
    fork.pin(files)
    fork.patched = files
    add(fork, "count.patch", {"engine.py": change(files["engine.py"], (b"    count = 1\n", b"    count = 11\n"))})
    found = rows(fork.fails(2, "--bisect", "old", "--source", str(clone)))
    assert found["count.patch"].count("(Count from one)") == 2 and "before" in found["count.patch"]


def test_over_releases(fork, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    tag = f"{wheel.python_tag()}-{wheel.python_tag()}-linux_{os.uname().machine}"
    for number, (_subject, files) in enumerate(list(versions(fork))[1::2], 4):
        write_wheel(fork.cache / "wheels" / f"sglang-1.2.{number}-{tag}.whl", files)
    output = fork.fails(2, "--bisect", "1.2.7")
    found = {name: line.split()[1:] for name, line in rows(output).items()}
    assert found["stop.patch"][:3] == ["1.2.4", "offset", "1.2.7"]
    assert found["count.patch"] == ["1.2.4", "offset", "1.2.6", "conflict"]
    assert found["other.patch"] == ["1.2.5", "split", "changed"]
    assert "4 releases from the pin" in output


def test_a_series_that_still_fits(fork, tmp_path):
    clone = history(tmp_path / "clone", ("Pin", fork.upstream), ("Other", {**fork.upstream, "notes.py": b"\n"}))
    output = fork.ok("--bisect", "main", "--source", str(clone))
    assert all(line.split() == [name] for name, line in rows(output).items())


def test_what_has_no_history_is_said(fork, tmp_path):
    place = directory(tmp_path / "next", {**fork.upstream, "engine.py": b"\n"})
    assert "has no history" in fork.fails(3, "--bisect", place)
    clone = history(tmp_path / "clone", *versions(fork))
    git(tmp_path, "clone", "--quiet", "--depth=1", clone.as_uri(), "shallow")
    output = fork.fails(3, "--bisect", "main", "--source", str(tmp_path / "shallow"))
    assert "the clone is shallow and does not have v1.2.3" in output
