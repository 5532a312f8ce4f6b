"""Wheel, git, directory and archive give the same tree, and a source that is none is one clear line."""

import shutil
import tarfile
import tempfile
import zipfile

import pytest
from forks import UPSTREAM, git, write_files, write_wheel

from patchseries import pin, upstream, wheel
from patchseries.console import Console

EXTRA = {"docs/index.md": b"# Docs\n", "python/pyproject.toml": b"[project]\n", ".gitattributes": b"* text=auto\n"}


@pytest.fixture
def clone(tmp_path):
    """A git repository of upstream: more files than the wheel, no generated `_version.py`, a tag."""
    root = tmp_path / "clone"
    root.mkdir()
    files = {path: value for path, value in UPSTREAM.items() if path != "_version.py"}
    write_files(root / "python" / "sglang", files)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    write_files(root, EXTRA)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "release")
    git(root, "tag", "v1.2.3")
    git(root, "config", "uploadpack.allowFilter", "true")
    return root


def resolve(fork, *arguments):
    return upstream.resolve(pin.load(fork.project.pin), fork.store, fork.console, *arguments)


def test_a_clone_gives_the_tag_by_default_and_knows_its_commit(built, clone):
    output = built.ok("--source", str(clone), "--force")
    assert f"commit {git(clone, 'rev-parse', 'HEAD')}" in output
    assert built.file("srt/rows.py").exists() and not (built.build / "docs").exists()
    assert built.file("srt/dos.py").read_bytes() == UPSTREAM["srt/dos.py"]


def test_a_url_is_fetched_without_its_blobs_first(built, clone):
    found = resolve(built, f"file://{clone}", "v1.2.3")
    assert (found.kind, found.commit) == ("git", git(clone, "rev-parse", "HEAD"))
    assert found.tree == resolve(built, str(clone), "v1.2.3").tree
    partial = next((built.cache / "clones").iterdir())
    docs = git(clone, "rev-parse", "HEAD:docs/index.md")
    missing = git(partial, "rev-list", "--objects", "--all", "--missing=print")
    assert f"?{docs}" in missing.split(), "blobs outside the package are not fetched"


def test_a_server_without_filters_will_do(built, clone):
    git(clone, "config", "uploadpack.allowFilter", "false")
    assert resolve(built, f"file://{clone}", "v1.2.3").commit


@pytest.mark.parametrize("ref", ["main", "commit", "short"])
def test_branches_and_commits_are_refs_too(built, clone, ref):
    commit = git(clone, "rev-parse", "HEAD")
    ref = {"commit": commit, "short": commit[:10]}.get(ref, ref)
    assert resolve(built, str(clone), ref).commit == commit


def test_a_clone_is_only_read(built, clone):
    (clone / "python" / "sglang" / "linear.py").write_bytes(b"uncommitted\n")
    before = git(clone, "status", "--porcelain"), git(clone, "for-each-ref")
    found = resolve(built, str(clone), "main")
    assert built.store.file(found.tree, "python/sglang/linear.py") == UPSTREAM["linear.py"]
    assert (git(clone, "status", "--porcelain"), git(clone, "for-each-ref")) == before


@pytest.mark.parametrize("where", ["clone", "url"])
def test_an_unknown_ref_is_one_line(built, clone, where):
    source = str(clone) if where == "clone" else f"file://{clone}"
    before = built.snapshot()
    assert "no-such-ref" in built.fails(3, "--source", source, "--ref", "no-such-ref")
    assert built.snapshot() == before


def test_an_option_is_no_ref(built, clone):
    assert "is not a commit, tag or branch" in built.fails(3, "--source", str(clone), "--ref=--upload-pack=x")


def test_another_commit_is_not_the_pin(built, clone):
    write_files(clone / "python" / "sglang", {"linear.py": b"other = 1\n" + UPSTREAM["linear.py"]})
    git(clone, "commit", "--quiet", "--all", "-m", "later")
    output = built.fails(1, "--source", str(clone), "--ref", "main")
    assert "other versions of the files that the series touches" in output


def test_directories_and_archives_give_the_wheels_tree(built, tmp_path):
    expected = resolve(built).tree
    tree = write_files(tmp_path / "a" / "python" / "sglang", UPSTREAM).parents[1]
    (tree / "python" / "sglang" / "__pycache__").mkdir()
    (tree / "python" / "sglang" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tree / "python" / "sglang" / "native.so").write_bytes(b"x")
    found = {
        "repository": resolve(built, str(tree)),
        "python": resolve(built, str(tree / "python")),
        "package": resolve(built, str(tree / "python" / "sglang")),
    }
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tree, "sglang-1.2.3")
    found["tar"] = resolve(built, str(tmp_path / "x.tar.gz"))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for file in sorted(tree.rglob("*")):
            archive.write(file, file.relative_to(tree))
    found["zip"] = resolve(built, str(tmp_path / "x.zip"))
    other = write_wheel(tmp_path / "sglang-1.2.3-other.whl", UPSTREAM, native=None)
    found["wheel"] = resolve(built, str(other))
    assert {name: each.tree for name, each in found.items()} == dict.fromkeys(found, expected)
    assert found["tar"].kind == "archive" and found["wheel"].kind == "wheel"


@pytest.mark.parametrize(
    ("source", "says"),
    [("nowhere", "no such file"), ("empty", "has neither python/sglang"), ("text.tar", "not a readable archive")],
)
def test_what_is_no_source_is_one_line(built, tmp_path, source, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("no archive")
    assert says in built.fails(3, "--source", str(tmp_path / source))


def test_a_ref_needs_a_repository(built, tmp_path):
    write_files(tmp_path / "python" / "sglang", UPSTREAM)
    assert "needs a git repository" in built.fails(3, "--source", str(tmp_path), "--ref", "main")


def test_a_git_server_that_cannot_be_reached_is_one_line(built):
    before = built.snapshot()
    assert "git fetch failed" in built.fails(3, "--source", "file:///nowhere/at/all", "--ref", "main")
    assert built.snapshot() == before


@pytest.mark.parametrize("name", ["../evil.txt", "/{outside}/evil.txt"])
def test_an_archive_cannot_write_outside(built, tmp_path, monkeypatch, name):
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(unpacked))
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(name.format(outside=unpacked)))
        archive.add(write_files(tmp_path / "sglang", UPSTREAM), "python/sglang")
    built.run("--source", str(tmp_path / "evil.tar"))
    assert list(tmp_path.rglob("evil.txt")) == []


def test_pinned_wheels_must_have_the_same_sources(built, tmp_path):
    """The wheel of another Python version has another source: it cannot be one pin."""
    add_wheel(built, {**UPSTREAM, "other.py": b"def other():\n    return 9\n"})
    output = built.fails(3, "--update-pin")
    assert "differ in 1 files" in output and "python/sglang/other.py" in output


def test_a_wheel_that_only_lost_modes_is_said_and_the_first_is_used(built):
    add_wheel(built, {**UPSTREAM, "srt/tool.sh": b"#!/bin/sh\necho tool\n"})
    built.ok("--update-pin")
    status, output = built.run("--update-pin")
    assert status == 0
    found = upstream.compare_wheels(pin.load(built.project.pin), built.store, Console())
    assert found[1] == 2
    assert "has other file modes" in built.ok("--update-pin")


def add_wheel(fork, files):
    """Pin a second wheel, for another Python version."""
    name = "sglang-1.2.3-cp399-cp399-linux.whl"
    path = write_wheel(fork.cache / "wheels" / name, files)
    text = (fork.root / "upstream.toml").read_text()
    table = f'[[wheel]]\npython = "cp399"\nplatform = "linux"\nfile = "{name}"\nsha256 = "{wheel.sha256(path)}"\n'
    (fork.root / "upstream.toml").write_text(text.replace("[products]", table + "[products]"))


def test_without_the_store_it_is_imported_again(built):
    shutil.rmtree(built.cache / "upstream.git")
    assert "up to date" in built.ok()
