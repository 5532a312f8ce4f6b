"""A wrong, truncated or unreachable wheel: one line, and build/ as it was. A good one is asked for once."""

import re
import shutil

import pytest


@pytest.fixture
def offline(built, monkeypatch, tmp_path):
    """No index that answers, and nothing in the cache."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "file:///nowhere/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    wheel = tmp_path / "kept" / built.wheel_path().name
    wheel.parent.mkdir()
    shutil.move(built.wheel_path(), wheel)
    shutil.rmtree(built.cache / "upstream.git")
    return built, wheel


def test_no_network_and_no_cache_is_one_line(offline):
    fork, _ = offline
    before = fork.snapshot()
    output = fork.fails(3)
    assert "sglang 1.2.3" in output and "could not be downloaded" in output and "--source FILE" in output
    assert fork.snapshot() == before


def test_with_the_wheel_at_hand_no_network_is_needed(offline):
    fork, wheel = offline
    shutil.copy(wheel, fork.cache / "wheels")
    assert "up to date" in fork.ok()
    fork.ok("--clean")
    fork.ok()


def test_pip_finds_it_where_pip_is_told_to_look(offline, monkeypatch):
    fork, wheel = offline
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert "up to date" in fork.ok()
    assert fork.wheel_path().read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b + b"x", lambda b: b""])
def test_a_damaged_download_is_refused_and_not_kept(offline, monkeypatch, damage):
    fork, wheel = offline
    wheel.write_bytes(damage(wheel.read_bytes()))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    before = fork.snapshot()
    assert re.search("sha256|is invalid", fork.fails(3)), "refused by its digest, or by pip before that"
    assert list((fork.cache / "wheels").glob("*")) == []
    assert fork.snapshot() == before


def test_a_damaged_file_in_the_cache_is_fetched_again(offline, monkeypatch):
    fork, wheel = offline
    (fork.cache / "wheels" / wheel.name).write_bytes(b"truncated")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert "up to date" in fork.ok()


def test_a_truncated_wheel_given_by_hand_is_one_line(offline):
    fork, wheel = offline
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert "has sha256" in fork.fails(3, "--source", str(wheel))
    renamed = wheel.rename(wheel.with_name("sglang-9.9-py3-none-any.whl"))
    assert "not a readable wheel" in fork.fails(3, "--source", str(renamed))
