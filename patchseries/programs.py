"""The programs that the tool runs: GNU diff and patch, quilt, pip.

Owns their environment: one locale, and none of the variables with which a user changes what they do.
"""

import os
import subprocess
from pathlib import Path

from patchseries.errors import ToolError

QUILT_ENVIRONMENT = {
    "QUILT_PATCHES": "../patches",
    "QUILT_SERIES": "../series",
    "QUILT_PC": ".pc",
    "QUILTRC": os.devnull,  # what `--quiltrc -` does: no file of the user's has a say
    "QUILT_REFRESH_ARGS": "-p ab --no-timestamps --no-index --sort",
    "QUILT_DIFF_ARGS": "-p ab --no-timestamps --no-index --sort",
    "QUILT_PUSH_ARGS": "--fuzz=0",
    "LC_ALL": "C",
}
"""For quilt run in the top directory of a working tree that lies beside `patches/` and `series`."""

_CHANGES_BEHAVIOUR = ("QUILT_", "POSIXLY_CORRECT", "PATCH_", "SIMPLE_BACKUP_SUFFIX", "VERSION_CONTROL", "GREP_OPTIONS")


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CHANGES_BEHAVIOUR)}
    return {**kept, "LC_ALL": "C", **extra}


def run(command: list[str], directory: Path | None = None, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """Run to the end with both outputs in `stdout` and nothing to read on stdin, so that a question cannot hang it."""
    try:
        return subprocess.run(
            command,
            cwd=directory,
            env=environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError:
        package = {"diff": "diffutils"}.get(command[0], command[0])
        raise ToolError(f"{command[0]} is not installed: install it (Debian: apt-get install {package})") from None
