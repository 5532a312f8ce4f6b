"""A patch from two git trees.

Owns the way from trees to text: which files differ, which were renamed, and their hunks.
"""

import tempfile
from pathlib import Path

from patchseries import patchfile, programs
from patchseries.errors import ToolError
from patchseries.listing import EXECUTABLE, REGULAR, Entry
from patchseries.patchfile import FileDiff, Hunk, PatchFile
from patchseries.store import Store


def patch_from_trees(store: Store, name: str, header: bytes, before: str, after: str) -> PatchFile:
    """The canonical patch from one git tree to the next. ToolError on binary content and symbolic links."""
    old_listing, new_listing = store.listing(before), store.listing(after)
    renames = store.renames(before, after)
    changed = {
        path
        for path in old_listing.keys() | new_listing.keys()
        if old_listing.get(path) != new_listing.get(path) and path not in renames.values()
    }
    pairs = [
        (None, new) if (old := renames.get(new, new)) not in old_listing
        else (old, new if new in new_listing else None)
        for new in sorted(changed)
    ]  # fmt: skip
    entries = [(old_listing.get(old), new_listing.get(new)) for old, new in pairs]
    contents = store.read(entry.blob for pair in entries for entry in pair if entry)
    files = []
    for (old, new), (before_entry, after_entry) in zip(pairs, entries, strict=True):
        files.append(_file_diff(name, old, new, before_entry, after_entry, contents))
    return PatchFile(name, header, tuple(files))


def _file_diff(
    name: str, old: str | None, new: str | None, before: Entry | None, after: Entry | None, contents: dict[str, bytes]
) -> FileDiff:
    path = new or old
    for entry in filter(None, (before, after)):
        if entry.mode not in (REGULAR, EXECUTABLE):
            raise ToolError(f"{name}: {path} is a symbolic link or a submodule, which a patch cannot carry")
        if b"\0" in contents[entry.blob]:
            raise ToolError(f"{name}: {path} is binary: a patch series carries text only")
    patchfile.check_path(path, name)
    hunks: tuple[Hunk, ...] = ()
    if (before.blob if before else None) != (after.blob if after else None):
        hunks = diff(contents[before.blob] if before else b"", contents[after.blob] if after else b"")
    modes = (before.mode if before else None, after.mode if after else None)
    if before and after and before.mode == after.mode:
        modes = (None, None)
    return FileDiff(old, new, *modes, hunks)


def diff(before: bytes, after: bytes) -> tuple[Hunk, ...]:
    """Hunks from GNU diff, the program behind `quilt refresh`: the two agree to the byte."""
    with tempfile.TemporaryDirectory() as scratch:
        old, new = Path(scratch, "old"), Path(scratch, "new")
        old.write_bytes(before)
        new.write_bytes(after)
        output = programs.run(
            ["diff", f"--unified={patchfile.CONTEXT}", "--label=a/x", "--label=b/x", str(old), str(new)]
        ).stdout
    return patchfile.parse("diff", output).files[0].hunks if output else ()
