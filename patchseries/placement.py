"""Where the lines of a hunk stand in a text.

Owns the search: exact places, what GNU patch would pick among them, what fuzz would accept, and how the lines of one
version of a file correspond to those of another. A text is a list of lines without their LF; a last line without one
is marked, so that it equals only its like. Places are 0-based line indexes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from patchseries import export
from patchseries.patchfile import Hunk

_UNENDED = b"\n\\"
MOST_FUZZ = 2
"""What GNU patch and quilt accept unless they are told otherwise."""


def split(content: bytes) -> list[bytes]:
    """The lines of a file."""
    lines = content.split(b"\n")
    if lines.pop():
        lines.append(content.rpartition(b"\n")[2] + _UNENDED)
    return lines


def join(lines: Sequence[bytes]) -> bytes:
    """The file that has these lines. A line without LF that is no longer the last gets one, as GNU patch gives it."""
    content = b"\n".join(line.removesuffix(_UNENDED) for line in lines)
    return content if not lines or lines[-1].endswith(_UNENDED) else content + b"\n"


def sides(hunk: Hunk) -> tuple[list[bytes], list[bytes]]:
    """The lines before and after a hunk, a last line without LF marked."""
    old, new = [], []
    for index, line in enumerate(hunk.lines):
        if line[:1] == b"\\":
            continue
        unended = index + 1 < len(hunk.lines) and hunk.lines[index + 1][:1] == b"\\"
        text = line[1:] + (_UNENDED if unended else b"")
        if line[:1] in b" -":
            old.append(text)
        if line[:1] in b" +":
            new.append(text)
    return old, new


def margins(hunk: Hunk) -> tuple[int, int]:
    """How many lines of context stand before the first change and after the last."""
    signs = [line[:1] for line in hunk.lines if line[:1] != b"\\"]
    changed = [index for index, sign in enumerate(signs) if sign != b" "]
    return changed[0], len(signs) - 1 - changed[-1]


def find(wanted: Sequence[bytes], text: Sequence[bytes]) -> list[int]:
    """Every place where consecutive lines stand in a text."""
    if not wanted:
        return []
    length = len(wanted)
    rare = min(range(length), key=lambda index: (len(wanted[index]) < 8, -len(wanted[index])))
    return [
        index - rare
        for index, line in enumerate(text)
        if line == wanted[rare] and index >= rare and list(text[index - rare : index - rare + length]) == wanted
    ]


def places(hunk: Hunk, text: Sequence[bytes], fuzz: int = 0) -> list[int]:
    """Where GNU patch accepts a hunk with that much fuzz: the place of its first line, trimmed context included.

    Less context after the changes than before them ties a hunk to the end of the file, the reverse to its start.
    """
    before, after = margins(hunk)
    most = max(before, after)
    cut_before, cut_after = max(0, before + fuzz - most), max(0, after + fuzz - most)
    old, _new = sides(hunk)
    if not old:
        return [] if text else [0]
    found = [place - cut_before for place in find(old[cut_before : len(old) - cut_after], text)]
    if before + fuzz < most and hunk.old_start <= 1:
        found = [place for place in found if place == 0]
    if after + fuzz < most:
        found = [place for place in found if place + len(old) == len(text)]
    return found


def fit(hunks: Sequence[Hunk], text: Sequence[bytes]) -> list[int | None]:
    """The place that GNU patch gives each hunk at fuzz 0, None where it rejects one: nearest to the line it states
    plus the last offset, behind the hunk before it."""
    found: list[int | None] = []
    offset = end = 0
    for hunk in hunks:
        stated = max(hunk.old_start - 1, 0)
        after = [place for place in places(hunk, text) if place >= end]
        best = min(after, key=lambda place: (abs(place - stated - offset), place < stated + offset), default=None)
        found.append(best)
        if best is not None:
            offset, end = best - stated, best + len(sides(hunk)[0])
    return found


def splice(text: Sequence[bytes], changes: Sequence[tuple[int, Hunk]]) -> list[bytes]:
    """The text with hunks put at places, which ascend."""
    result, at = [], 0
    for place, hunk in changes:
        old, new = sides(hunk)
        result += [*text[at:place], *new]
        at = place + len(old)
    return [*result, *text[at:]]


def trimmed(hunk: Hunk, fuzz: int) -> tuple[int, Hunk]:
    """A hunk without the context that fuzz ignores, and how many lines were cut before it."""
    before, after = margins(hunk)
    most = max(before, after)
    cut_before, cut_after = max(0, before + fuzz - most), max(0, after + fuzz - most)
    lines = hunk.lines[cut_before : len(hunk.lines) - cut_after]
    return cut_before, Hunk(
        hunk.old_start + cut_before,
        hunk.old_count - cut_before - cut_after,
        hunk.new_start + cut_before,
        hunk.new_count - cut_before - cut_after,
        lines,
    )


@dataclass(frozen=True)
class LineMap:
    """Which line of one version of a file is which of another, by GNU diff. A line that was changed has no match."""

    forward: dict[int, int]
    backward: dict[int, int]

    @classmethod
    def between(cls, before: bytes, after: bytes) -> "LineMap":
        forward, old, new = {}, 0, 0
        total = len(split(before))
        for hunk in export.diff(before, after):
            while old < hunk.old_start - (hunk.old_count > 0):
                forward[old], old, new = new, old + 1, new + 1
            for line in hunk.lines:
                if line[:1] == b" ":
                    forward[old] = new
                old += line[:1] in b" -"
                new += line[:1] in b" +"
        while old < total:
            forward[old], old, new = new, old + 1, new + 1
        return cls(forward, {there: here for here, there in forward.items()})
