"""A hand-edited hunk is found out, and no line of it is lost (accident 8)."""

import re

import pytest

from patchseries import patchfile
from patchseries.errors import ToolError


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (b"@@ -2,7 +2,8 @@", "ends earlier"),
        (b"@@ -2,6 +2,7 @@", "has others"),
        (b"@@ -2,7 +2,6 @@", "ends earlier|has others"),
        (b"@@ -2,9 +2,9 @@", "ends earlier"),
        (b"@@ -2,2 +2,2 @@", "changes nothing"),
    ],
)
def test_wrong_counts_are_an_error_with_a_line_number(built, counts, says):
    path = built.root / "patches" / "edit-linear.patch"
    text = path.read_bytes()
    assert b"@@ -2,7 +2,7 @@" in text
    path.write_bytes(text.replace(b"@@ -2,7 +2,7 @@", counts))
    for command in ("--lint", "--refresh", "--update-pin", "--status"):
        output = built.fails(3, command)
        assert re.search(r"edit-linear.patch, line \d+: ", output) and re.search(says, output)


def test_an_added_line_without_its_count_is_an_error(built):
    path = built.root / "patches" / "add-module.patch"
    path.write_bytes(path.read_bytes() + b"+MORE = 2\n")
    assert "line count is too small" in built.fails(3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"@@ -1 +1 @@\n-a\n+b\n", "without the --- and"),
        (b"--- a/x\n+++ b/x\n", "has no hunk"),
        (b"--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "different files"),
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n a\n", "changes nothing"),
        (b"--- a/x\n+++ b/x\n@@ nonsense @@\n", "not a hunk range"),
        (b"--- x\n+++ y\n", None),
        (b"--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "not supported"),
        (b"--- a/x y\n+++ b/x y\n@@ -1 +1 @@\n-a\n+b\n", "not supported"),
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/x\n+++ b/x\n@@ -2 +2 @@\n-a\n+b\n", "occurs twice"),
        (b"diff --git a/x b/x\nGIT binary patch\n", "neither a hunk|binary"),
        (b"diff --git a/x b/x\nBinary files a/x and b/x differ\n", "neither a hunk|binary"),
        (b"diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+y\n", "mode 120000"),
        (b"diff --git a/x b/y\ncopy from x\ncopy to y\n", "copies"),
        (b"diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "no `rename from`"),
        (b"--- /dev/null\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n+b\n", "cannot exist"),
        (b"Index: x\n=====\n", "no line of a unified diff"),
        (b"Description: x\r\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "CR line ends"),
    ],
)
def test_what_is_no_patch_is_an_error(text, says):
    if says is None:
        assert patchfile.parse("x.patch", text).files == ()  # prose: the header may have such lines
        return
    with pytest.raises(ToolError, match=says):
        patchfile.parse("x.patch", text)
