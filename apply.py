#!/usr/bin/env python3
"""The patched tree from the pinned upstream and the series; `apply.py --help` lists what else it does.

Exit status: 0 done; 1 drift, what is found is not what is pinned; 2 conflict, a patch does not apply; 3 wrong usage
or something missing.
"""

import argparse
import os
import sys
from pathlib import Path

try:
    from patchseries import build
    from patchseries.console import Console
    from patchseries.errors import OK, ToolError
    from patchseries.store import Store
except ModuleNotFoundError as missing:
    sys.exit(f"apply.py: {missing.name} is not installed: run `make`, or `pip install -r requirements.txt`")

ROOT = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", help="a git URL or clone, a directory, a wheel or an archive")
    parser.add_argument("--ref")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--update-pin", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    console = Console(options.quiet)
    try:
        cache = options.cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "patchseries")
        project, store = build.Project(ROOT), Store(cache)
        if options.update_pin:
            build.update_pin(project, store, console)
        else:
            build.make(project, store, console, options.source, options.ref, options.force)
    except ToolError as error:
        console.error(error)
        return error.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
