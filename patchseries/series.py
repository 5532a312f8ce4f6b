"""`series`: the only order of the patches.

Owns the list: one patch file name a line, `#` comments on lines of their own. quilt's other syntax (options after a
name, compressed patches, sub-directories) is refused, so that quilt and this tool cannot read the file differently.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from patchseries import patchfile
from patchseries.errors import ToolError
from patchseries.listing import Listing
from patchseries.patchfile import PatchFile


def names(path: Path) -> list[str]:
    """Patch file names in order. An empty list is for the caller to judge; a malformed line is a ToolError."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except FileNotFoundError:
        raise ToolError(f"{path} is missing: it lists the patches in order") from None
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text") from None
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*\.patch", line):
            raise ToolError(f"{path}, line {number}: {line!r} is not just the name of a patch (lower case, *.patch)")
        if line in found:
            raise ToolError(f"{path}, line {number}: {line} is listed twice")
        found.append(line)
    return found


def load(path: Path, patches: Path) -> list[PatchFile]:
    """Every patch in order, parsed. The series and the directory must agree both ways, and be non-empty."""
    listed = names(path)
    present = sorted(entry.name for entry in patches.iterdir()) if patches.is_dir() else []
    for name in listed:
        if name not in present:
            raise ToolError(f"{path} names {name}, and {patches} has no such file")
    for name in present:
        if name not in listed:
            raise ToolError(f"{patches / name} is not in {path}: add it there or remove the file")
    if not listed:
        raise ToolError(f"{path} lists no patch: nothing to apply")
    return [patchfile.read(patches / name) for name in listed]


def digest(path: Path, patches: Path) -> str:
    """sha256 over names and bytes of the patches in order; comments in the series file do not count."""
    total = hashlib.sha256()
    for name in names(path):
        content = (patches / name).read_bytes()
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def touched(patches: Iterable[PatchFile]) -> list[str]:
    """Every path that the patches read or write, sorted."""
    return sorted({path for patch in patches for path in patch.paths})


def touched_digest(listing: Listing, patches: Iterable[PatchFile]) -> str:
    """sha256 over `mode blob path` (or `absent path`) of every file that the series names, in path order."""
    paths = touched(patches)
    lines = [f"{e.mode} {e.blob} {path}\n" if (e := listing.get(path)) else f"absent {path}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
