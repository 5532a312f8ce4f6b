"""Files as git sees them: mode and blob id by path, of a git tree or of a directory.

Owns `Entry` and `Listing`. Needs nothing but the standard library, so it also runs where no git is.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NATIVE = re.compile(r"\.(so|pyd|dylib)$")
"""Native modules: built per Python version and platform, hence never part of a git tree."""

REGULAR, EXECUTABLE, SYMLINK, SUBMODULE = "100644", "100755", "120000", "160000"


@dataclass(frozen=True)
class Entry:
    """A file in a tree: git mode (`100644`, `100755`, `120000`) and blob id."""

    mode: str
    blob: str


Listing = dict[str, Entry]
"""Path below the root of the tree -> Entry."""


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


EMPTY_BLOB = blob_id(b"")


def read_entry(path: Path) -> Entry:
    """The entry git would make of the file at `path`, byte for byte."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Entry(SYMLINK, blob_id(os.fsencode(os.readlink(path))))
    mode = EXECUTABLE if status.st_mode & stat.S_IXUSR else REGULAR
    return Entry(mode, blob_id(path.read_bytes()))


def scan(directory: Path, skip: Callable[[str], bool] = lambda path: False) -> Listing:
    """Every file below `directory`, ignored ones included. `skip(path)` prunes files and directories.

    Bytecode caches are left out: an import writes them, and they are no source.
    """
    listing: Listing = {}
    for parent, directories, files in os.walk(directory):
        base = os.path.relpath(parent, directory)
        prefix = "" if base == "." else base + "/"
        links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
        directories[:] = [d for d in directories if d != "__pycache__" and d not in links and not skip(prefix + d)]
        for name in files + links:
            if not skip(prefix + name):
                listing[prefix + name] = read_entry(Path(parent, name))
    return listing
