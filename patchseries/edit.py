"""`apply.py --edit`: quilt in `build/`, set up for this series.

Owns the shell that a person edits in. Without a terminal the environment is printed instead, for `eval`.
"""

import os
import shlex
import sys

from patchseries import build, programs
from patchseries.build import Project
from patchseries.console import Console
from patchseries.errors import ToolError
from patchseries.store import Store


def edit(project: Project, _store: Store, console: Console) -> None:
    """Start a shell in `build/` with quilt's environment; ToolError if there is no `build/` of the tool."""
    if build.read_record(project.build) is None:
        raise ToolError("there is no build/ to edit: run `apply.py`")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        console.result(f"cd {shlex.quote(str(project.build))}")
        for name, value in programs.QUILT_ENVIRONMENT.items():
            console.result(f"export {name}={shlex.quote(value)}")
        return
    console.note(
        "quilt new NAME.patch, quilt edit FILE, quilt refresh, quilt pop, push; then exit and apply.py --refresh"
    )
    shell = os.environ.get("SHELL", "/bin/sh")
    os.chdir(project.build)
    os.execvpe(shell, [shell], {**programs.environment(), **programs.QUILT_ENVIRONMENT})
