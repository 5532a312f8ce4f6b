"""What a clone's history tells, and what a clone that lacks it cannot tell (accident 22)."""

import shutil

import pytest
from forks import change, git
from upstreams import ENGINE, add, check, history, judged

STOP = (b"        self.rows = []\n        return self.size\n", b"        self.rows = None\n        return self.size\n")
ABOVE = change(ENGINE, (b"import os\n", b"import os\nimport sys\n"))
CHANGED = change(ABOVE, (b"        return self.size\n", b"        return self.rows\n"))
LATER = change(CHANGED, (b"    count = 0\n", b"    count = 1\n"))


@pytest.fixture
def engine(fork):
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "stop.patch", {"engine.py": change(ENGINE, STOP)})
    return fork


@pytest.fixture
def clone(engine, tmp_path):
    """Four commits: the pinned one, an import above, the edited lines changed, and a change elsewhere."""
    contents = {"Pin": ENGINE, "Import sys": ABOVE, "Return the rows": CHANGED, "Count from one": LATER}
    versions = [(subject, {**engine.upstream, "engine.py": content}) for subject, content in contents.items()]
    return history(tmp_path / "clone", *versions)


def hunk_at(fork, clone, ref):
    _status, found = check(fork, ref, "--source", str(clone))
    (each,) = found["upstreams"]
    assert each["commit"] == git(clone, "rev-parse", ref)
    return each, each["patches"][0]["hunks"][0]


def test_the_commit_that_changed_the_lines_is_named(engine, clone):
    for ref in ("main", "main~1"):
        each, hunk = hunk_at(engine, clone, ref)
        commit = git(clone, "rev-parse", "main~1")[:12]
        assert hunk["verdict"] in ("fuzz", "conflict") and each["no_history"] == ""
        assert hunk["cause"].endswith(f"changed by commit {commit} (Return the rows)")


def test_every_ref_of_a_clone_can_be_checked(engine, clone):
    status, found = check(engine, "v1.2.3", "main~2", "main", "--source", str(clone))
    assert status == 2
    assert [each["patches"][0]["verdict"] for each in found["upstreams"][:2]] == ["clean", "offset"]


def test_a_clone_given_as_a_directory_means_its_head(engine, clone):
    git(clone, "checkout", "--quiet", "main~2")
    assert judged(engine, str(clone))["commit"] == git(clone, "rev-parse", "main~2")


def test_an_upstream_older_than_the_pin(engine, clone):
    git(clone, "tag", "--force", "v1.2.3", "main")
    engine.pin({**engine.upstream, "engine.py": LATER})
    engine.patched = engine.upstream
    (engine.root / "series").write_text("")
    (engine.root / "patches" / "stop.patch").unlink()
    old = (
        b"        self.rows = []\n        return self.rows\n",
        b"        self.rows = None\n        return self.rows\n",
    )
    add(engine, "stop.patch", {"engine.py": change(LATER, old)})
    _each, hunk = hunk_at(engine, clone, "main~3")
    commit = git(clone, "rev-parse", "main~1")[:12]
    assert f"brought by commit {commit} (Return the rows), which this upstream lacks" in hunk["cause"]


def test_a_shallow_clone_is_judged_and_its_missing_history_is_said(engine, clone, tmp_path):
    git(tmp_path, "clone", "--quiet", "--depth=1", clone.as_uri(), "shallow")
    each, hunk = hunk_at(engine, tmp_path / "shallow", "main")
    assert hunk["verdict"] in ("fuzz", "conflict") and "commit" not in hunk["cause"]
    assert "the clone is shallow and does not have v1.2.3" in each["no_history"]


def test_a_clone_whose_history_does_not_reach_the_pin(engine, clone, tmp_path):
    git(tmp_path, "clone", "--quiet", "--depth=1", clone.as_uri(), "shallow")
    git(tmp_path / "shallow", "fetch", "--quiet", "--depth=1", "origin", "tag", "v1.2.3")
    each, _hunk = hunk_at(engine, tmp_path / "shallow", "main")
    assert "the clone is shallow and has no commit that v1.2.3" in each["no_history"]


def test_a_partial_clone_without_its_blobs_is_no_conflict(engine, clone, tmp_path):
    git(clone, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--bare", "--filter=blob:none", clone.as_uri(), "partial")
    shutil.rmtree(clone)
    status, found = check(engine, "main", "--source", str(tmp_path / "partial"))
    assert status == 3 and found["verdict"] == "error"
    assert "lacks" in found["upstreams"][0]["error"] and "blobs" in found["upstreams"][0]["error"]


def test_a_partial_clone_that_has_only_the_blobs_of_one_commit_names_no_commit(engine, clone, tmp_path):
    git(clone, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", clone.as_uri(), "partial")
    shutil.rmtree(clone)
    each, hunk = hunk_at(engine, tmp_path / "partial", "main")
    assert each["verdict"] == "conflict" and "the commit cannot be told" in hunk["cause"]


def test_an_unknown_ref_does_not_keep_the_others_from_being_judged(engine, clone):
    status, output = engine.run("--check", "main~2", "nowhere", "--source", str(clone))
    assert status == 3 and "has no commit, tag or branch 'nowhere'" in output and "offset" in output


def test_a_repository_without_the_package_is_said_so(engine, clone, tmp_path):
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet")
    git(tmp_path / "empty", "commit", "--quiet", "--allow-empty", "--message", "Nothing")
    _status, found = check(engine, "main", "--source", str(tmp_path / "empty"))
    assert "has no python/sglang" in found["upstreams"][0]["error"]
