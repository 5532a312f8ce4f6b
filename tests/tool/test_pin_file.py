"""`upstream.toml`: what is wrong with it is said by name, and writing it changes [products] alone."""

import re

import pytest


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('package = "sglang"\n', "", "needs `package`"),
        ('release = "1.2.3"', 'release = "latest"', "needs `release`"),
        ("revision = 1", 'revision = "1"', "needs `revision`"),
        ('sha256 = "', 'sha256 = "short', "needs `sha256`"),
        ("[fork]", "[fork", "not valid TOML"),
        ('patched_tree = "', 'patched_tree = "x', "needs `patched_tree`"),
    ],
)
def test_a_wrong_pin_is_one_line(built, old, new, says):
    path = built.root / "upstream.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert says in built.fails(3)


def test_a_missing_pin_is_one_line(built):
    (built.root / "upstream.toml").unlink()
    assert "upstream.toml is missing" in built.fails(3)


def test_only_products_are_rewritten(built):
    path = built.root / "upstream.toml"
    path.write_text("# Ours.\n\n" + path.read_text().replace("revision = 1", "revision   =   1  # spaced"))
    before = path.read_text()
    patch = built.root / "patches" / "add-module.patch"
    patch.write_bytes(patch.read_bytes().replace(b"ROWS = 1", b"ROWS = 2"))
    built.ok("--update-pin")
    after = path.read_text()
    assert after != before
    assert after[: after.index("[products]")] == before[: before.index("[products]")]
    assert "is up to date" in built.ok("--update-pin") and path.read_text() == after


def test_a_pin_that_was_never_accepted_is_said(fork):
    fork.add_change("edit.patch", other_py=b"def other():\n    return 2\n")
    assert "has no [products] yet" in fork.fails(1)
    assert not fork.build.exists()


def test_wrong_arguments_are_usage(fork):
    for arguments in (["--nonsense"], ["--lint", "--refresh"], ["--cache"]):
        status, output = fork.run(*arguments)
        assert status == 3 and "usage:" in output
    assert fork.run("--help")[0] == 0


@pytest.mark.parametrize(
    "arguments", [["--lint", "--source", "x"], ["--status", "--ref", "x"], ["--refresh", "--force"], ["--json"]]
)
def test_an_option_without_effect_is_refused(built, arguments):
    assert re.search("is for|are for", built.fails(3, *arguments))
