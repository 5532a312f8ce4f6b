"""Which hunk made which line.

Owns the textual dependencies inside a series: a hunk needs the hunks of earlier patches that added a line it keeps or
removes, or that made two of its lines neighbours.
"""

from patchseries.chain import Step
from patchseries.patchfile import FileDiff
from patchseries.placement import split
from patchseries.store import Store

HunkName = tuple[str, str, int]
"""Patch, path, hunk number from 1; 0 for what a patch does to a file without a hunk."""

Needs = dict[HunkName, frozenset[HunkName]]
"""Hunk -> the hunks of earlier patches whose lines it has among its own."""

_Owner = HunkName | None


def needs(store: Store, steps: list[Step]) -> Needs:
    """The needs of every hunk of a series that is applied at the pin."""
    found: dict[HunkName, frozenset[HunkName]] = {}
    files: dict[str, _Lines] = {}
    for step in steps:
        for diff in step.patch.files:
            if diff.old is None:
                lines = _Lines(0, (step.patch.name, diff.path, min(1, len(diff.hunks))))
            else:
                lines = files.pop(diff.old, None) or _Lines(len(split(store.file(step.before, diff.old) or b"")))
            found.update(lines.apply(step.patch.name, diff))
            if diff.new:
                files[diff.new] = lines
    return found


class _Lines:
    """One file as it changes along the series: for each line, the hunk that added it and the hunk that made the line
    before it its neighbour. origin: the hunk that created the file."""

    def __init__(self, count: int, origin: _Owner = None):
        self.added: list[_Owner] = [None] * count
        self.joined: list[_Owner] = [None] * count
        self.origin = origin

    def apply(self, patch: str, diff: FileDiff) -> Needs:
        """Put the hunks of a file in; returns what each needs."""
        found: Needs = {}
        added, joined, at = [], [], 0
        if not diff.hunks:
            found[(patch, diff.path, 0)] = frozenset(filter(None, {self.origin} if diff.old else set()))
        for number, hunk in enumerate(diff.hunks, 1):
            name = (patch, diff.path, number)
            start = hunk.old_start - (hunk.old_count > 0)
            end = start + hunk.old_count
            owners = {*self.added[start:end], *self.joined[start + 1 : end], self.origin if diff.old else None}
            found[name] = frozenset(owners - {None})
            added += self.added[at:start]
            joined += self.joined[at:start]
            at, changed = start, False
            for line in hunk.lines:
                if line[:1] == b" ":
                    added.append(self.added[at])
                    joined.append(name if changed else self.joined[at])
                    at, changed = at + 1, False
                elif line[:1] == b"-":
                    at, changed = at + 1, True
                elif line[:1] == b"+":
                    added.append(name)
                    joined.append(name)
                    changed = True
        self.added, self.joined = added + self.added[at:], joined + self.joined[at:]
        return found
