"""Another repository around the checkout, and its settings, change nothing (accident 3)."""

import os

from forks import UPSTREAM, git


def test_the_tree_is_the_same_inside_another_repository(built, monkeypatch):
    """`git apply` there skips every file and exits 0."""
    outer = built.root.parent
    expected = built.file("linear.py").read_bytes()
    git(outer, "init", "--quiet")
    git(outer, "config", "core.autocrlf", "true")
    (outer / ".gitattributes").write_text("* text eol=crlf\n*.py ident filter=nothing\n")
    (outer / ".gitignore").write_text("*\n")
    monkeypatch.chdir(built.root)
    built.ok("--clean")
    assert "2 patches" in built.ok()
    assert built.file("linear.py").read_bytes() == expected
    assert built.file("srt/dos.py").read_bytes() == UPSTREAM["srt/dos.py"]


def test_variables_of_a_git_hook_are_ignored(built, monkeypatch):
    other = built.root.parent / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    before = sorted(other.rglob("*"))
    built.ok("--clean")
    built.ok()
    assert sorted(other.rglob("*")) == before
    assert "GIT_DIR" not in os.environ


def test_settings_of_the_user_are_ignored(built, monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core]\n\tautocrlf = true\n\thooksPath = /nowhere\n[diff]\n\tnoprefix = true\n")
    (home / ".quiltrc").write_text("QUILT_PATCH_OPTS='--ignore-whitespace'\nQUILT_PATCHES=nowhere\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("QUILT_PATCHES", "nowhere")
    monkeypatch.setenv("POSIXLY_CORRECT", "1")
    built.ok("--clean")
    built.ok()
    assert built.file("srt/dos.py").read_bytes() == UPSTREAM["srt/dos.py"]
    assert "no patch rewritten" in built.ok("--refresh")


def test_a_broken_configuration_of_the_user_is_ignored(built, monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    built.ok("--clean")
    built.ok()
