"""The chain: the git tree before and after each patch.

Owns application. A patch is a step from one tree to the next, made by GNU patch at fuzz 0 in a scratch directory that
holds nothing but the files the patch names, so nothing outside can influence it. What GNU patch accepts too readily
when it may not ask (a new file that exists, a deleted one that does not) is refused first.
"""

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from patchseries import patchfile, programs
from patchseries.errors import CONFLICT, ToolError
from patchseries.listing import Entry, Listing, read_entry
from patchseries.patchfile import FileDiff, Hunk, PatchFile
from patchseries.store import Store


@dataclass(frozen=True)
class Step:
    """One patch applied: the tree ids on both sides, and the hunks that landed off their line.

    offsets: (path, hunk number from 1, lines).
    """

    patch: PatchFile
    before: str
    after: str
    offsets: tuple[tuple[str, int, int], ...] = ()


def apply_series(store: Store, tree: str, patches: Iterable[PatchFile]) -> list[Step]:
    """Apply the patches in order; ToolError (code 2) at the first that does not apply."""
    steps: list[Step] = []
    for patch in patches:
        steps.append(apply_patch(store, steps[-1].after if steps else tree, patch))
    return steps


def apply_patch(store: Store, tree: str, patch: PatchFile) -> Step:
    """Apply one patch to a tree at fuzz 0.

    ToolError (code 2) names file and hunk and shows what the tree has there instead.
    """
    if not patch.files:
        raise ToolError(f"{patch.name} changes no file")
    listing = store.listing(tree)
    for diff in patch.files:
        if problem := precondition(diff, listing):
            raise ToolError(f"{patch.name} does not apply: {problem}", CONFLICT)
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch, "tree")
        top.mkdir()
        store.export_files({path: listing[path] for path in patch.paths if path in listing}, top)
        text = Path(scratch, "patch")
        text.write_bytes(patchfile.render(patch))
        done = programs.run(
            ["patch", "-p1", "--fuzz=0", "--force", "--no-backup-if-mismatch", "--reject-file=-", f"--input={text}"],
            top,
        )
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            raise _rejected(store, tree, patch, output)
        after = {path: read_entry(top / path) for path in patch.paths if (top / path).exists()}
        written = [path for path in after if after[path] != listing.get(path)]
        store.write_blobs([top / path for path in written])
    changes: dict[str, Entry | None] = {
        path: after.get(path) for path in patch.paths if after.get(path) != listing.get(path)
    }
    return Step(patch, tree, store.write_tree(tree, changes), _offsets(output))


def precondition(diff: FileDiff, listing: Listing) -> str | None:
    """Why a file of a patch cannot apply to a tree whatever its hunks say; None if it may."""
    if diff.old is None and diff.new in listing:
        return f"{diff.new} is a new file in the patch, and the tree has it already"
    if diff.old is not None and diff.old not in listing:
        return f"{diff.old} does not exist in the tree (removed, renamed or moved)"
    if diff.renamed and diff.new in listing:
        return f"{diff.old} is renamed to {diff.new}, and the tree has that file already"
    if diff.old is not None and diff.old_mode and listing[diff.old].mode != diff.old_mode:
        return f"{diff.old} has mode {listing[diff.old].mode} in the tree, {diff.old_mode} in the patch"
    return None


def explain(hunk: Hunk, content: bytes) -> list[str]:
    """Where a hunk was meant for and what the file has there: the first line that differs."""
    lines = content.split(b"\n")
    old = hunk.old
    if not old:
        return [f"the hunk adds to an empty file, and the file has {len(lines)} lines"]

    def agreement(start: int) -> int:
        return sum(a == b for a, b in zip(old, lines[start : start + len(old)], strict=False))

    expected = max(hunk.old_start - 1, 0)
    best = max(range(len(lines)), key=lambda start: (agreement(start), -abs(start - expected)))
    start = best if agreement(best) else min(expected, len(lines) - 1)
    for index, line in enumerate(old):
        there = lines[start + index] if start + index < len(lines) else None
        if there != line:
            shown = "the end of the file" if there is None else repr(there.decode(errors="replace"))
            return [
                f"line {start + index + 1}: the patch expects {line.decode(errors='replace')!r}",
                f"line {start + index + 1}: the tree has      {shown}",
            ]
    return [f"its lines stand at line {start + 1}, where the patch may not put them (it is anchored to the file's end)"]


def _rejected(store: Store, tree: str, patch: PatchFile, output: str) -> ToolError:
    details, first = [], ""
    by_path = {diff.path: diff for diff in patch.files}
    for path, number, rest in _hunk_reports(output):
        diff = by_path.get(path)
        if not rest.startswith("FAILED") or diff is None or not 0 < number <= len(diff.hunks):
            continue
        hunk = diff.hunks[number - 1]
        where = f"{diff.path}, hunk {number} of {len(diff.hunks)} ({hunk.header.decode()})"
        first = first or where
        content = store.file(tree, diff.old) if diff.old else b""
        details += [where, *(f"  {line}" for line in explain(hunk, content or b""))]
    if not first:
        details, first = output.strip().splitlines(), "patch says"
    return ToolError(f"{patch.name} does not apply: {first}", CONFLICT, details)


def _hunk_reports(output: str) -> list[tuple[str, int, str]]:
    """(path, hunk number, what happened) from what GNU patch prints in the C locale."""
    found, path = [], ""
    for line in output.splitlines():
        if match := re.match(r"(?:patching|checking) file '?(.+?)'?(?: \((?:renamed|copied) from .*\))?$", line):
            path = match[1]
        elif match := re.match(r"Hunk #(\d+) (.+)", line):
            found.append((path, int(match[1]), match[2]))
    return found


def _offsets(output: str) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (path, number, int(match[1]))
        for path, number, rest in _hunk_reports(output)
        if (match := re.search(r"\(offset (-?\d+) lines?\)", rest))
    )
