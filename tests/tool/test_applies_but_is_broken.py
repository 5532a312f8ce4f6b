"""A series that applies cleanly and does not compile or lacks a name is found out, patch by patch (accident 20)."""

from forks import change


def test_a_patch_that_does_not_compile(built):
    built.add_change("broken.patch", other_py=b"def other(:\n    return 3\n")
    built.ok("--refresh")
    built.ok("--update-pin")
    output = built.fails(1, "--lint")
    assert "broken.patch: python/sglang/other.py: does not compile" in output


def test_each_patch_leaves_a_tree_that_compiles(fork):
    """The second patch mends what the first breaks: the first is still a problem."""
    fork.add_change("breaks.patch", other_py=b"def other(:\n    return 3\n")
    fork.add_change("mends.patch", other_py=b"def other():\n    return 3\n")
    fork.ok("--refresh")
    fork.ok("--update-pin")
    output = fork.fails(1, "--lint")
    assert "breaks.patch: python/sglang/other.py: does not compile" in output and "lint: 1 problems" in output


def test_a_name_that_only_a_later_patch_brings(fork):
    fork.add_change("uses.patch", other_py=b"def other():\n    return helper()\n")
    fork.add_change("brings.patch", other_py=b"def helper():\n    return 1\n\n\ndef other():\n    return helper()\n")
    fork.ok("--refresh")
    fork.ok("--update-pin")
    assert "uses.patch: python/sglang/other.py, line 2: F821" in fork.fails(1, "--lint")


def test_a_file_that_is_no_python_is_not_compiled(fork):
    script = fork.upstream["srt/tool.sh"]
    fork.add_files("script.patch", {"srt/tool.sh": (change(script[0], (b"echo tool", b"echo (((")), script[1])})
    fork.ok("--refresh")
    fork.ok("--update-pin")
    fork.ok("--lint")
