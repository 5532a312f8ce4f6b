"""A refresh changes what was edited and not one byte more (accident 14)."""

import re

from forks import NUMBERS, change

NOISE = rb"(?m)^index |^Index: |^=====|^diff -|\t\d{4}-|^similarity|^@@ .* @@ ."


def test_the_canonical_form_has_no_noise(built):
    for path in (built.root / "patches").iterdir():
        assert not re.search(NOISE, path.read_bytes())


def test_a_refresh_of_a_canonical_series_rewrites_nothing(built):
    built.ok("--refresh")
    before = built.snapshot()
    assert "refreshed 2 patches, 4 hunks, 3 files from the patches: no patch rewritten" in built.ok("--refresh")
    assert built.snapshot() == before


def test_noise_is_taken_out(built):
    path = built.root / "patches" / "edit-linear.patch"
    canonical = path.read_bytes()
    noisy = canonical.replace(
        b"--- a/python/sglang/linear.py\n+++ b/python/sglang/linear.py\n",
        b"diff --git a/python/sglang/linear.py b/python/sglang/linear.py\nindex 0123456..789abcd 100644\n"
        b"--- a/python/sglang/linear.py\t2026-01-31 10:00:00\n+++ b/python/sglang/linear.py\t2026-01-31 10:00:01\n",
    ).replace(b" @@\n", b" @@ def somewhere():\n")
    path.write_bytes(noisy)
    assert "edit-linear.patch rewritten" in built.ok("--refresh")
    assert path.read_bytes() == canonical


def test_quilts_own_refresh_gives_the_same_bytes(built):
    """quilt is the reference for the text of an edit."""
    path = built.root / "patches" / "add-module.patch"
    built.quilt("pop")
    built.quilt("push")
    built.file("other.py").write_bytes(b"def other():\n    return 5\n\n\ndef more():\n    return 6\n")
    built.quilt("refresh")
    by_quilt = path.read_bytes()
    built.ok("--refresh")
    assert path.read_bytes() == by_quilt


def test_an_edit_of_one_patch_leaves_the_others_alone(built):
    first, second = (built.root / "patches" / name for name in ("edit-linear.patch", "add-module.patch"))
    before = first.read_bytes()
    built.file("srt/rows.py").write_bytes(b"ROWS = 2\n")
    assert "from build/: add-module.patch rewritten" in built.ok("--refresh")
    assert first.read_bytes() == before and b"+ROWS = 2\n" in second.read_bytes()


def test_line_numbers_of_later_patches_follow(fork):
    """Refreshing an early patch moves a later one: its ranges are made anew, its lines stay."""
    first = change(NUMBERS, (b"value_5 = 5\n", b"value_5 = 50\n"))
    fork.add_change("first.patch", linear_py=first)
    later = fork.add_change("later.patch", linear_py=change(first, (b"value_30 = 30\n", b"value_30 = 300\n")))
    fork.make()
    fork.quilt("pop")
    fork.file("linear.py").write_bytes(change(first, (b"value_5 = 50\n", b"value_5 = 50\nmore = 1\n")))
    before = later.read_bytes()
    assert "first.patch, later.patch rewritten" in fork.ok("--refresh")
    assert later.read_bytes() == before.replace(b"@@ -27,7 +27,7 @@", b"@@ -28,7 +28,7 @@")


def test_the_header_is_kept_to_the_byte(built):
    path = built.root / "patches" / "add-module.patch"
    header = path.read_bytes().split(b"\n\n--- ")[0]
    built.file("srt/rows.py").write_bytes(b"ROWS = 2\n")
    built.ok("--refresh")
    assert path.read_bytes().split(b"\n\n--- ")[0] == header


def test_files_are_in_the_order_of_their_paths(fork):
    path = fork.add_files("many.patch", {name: b"X = 1\n" for name in ("b.py", "a/z.py", "Z.py", "a.py")})
    named = re.findall(rb"(?m)^\+\+\+ b/python/sglang/(.+)$", path.read_bytes())
    assert named == sorted(named) == [b"Z.py", b"a.py", b"a/z.py", b"b.py"]
