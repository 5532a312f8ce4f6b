"""Upstream's commits between the pin and another commit, where a clone has them.

Owns the questions to a clone's history. A clone that is shallow, or that lacks blobs, is said to be so: what it cannot
tell is unknown, never a verdict.
"""

from dataclasses import dataclass

from patchseries import placement
from patchseries.errors import ToolError
from patchseries.pin import Pin
from patchseries.store import Repository
from patchseries.upstream import Upstream


@dataclass(frozen=True)
class Commit:
    """subject: first line of its message. blob: of the file that was asked for, None if the commit removed it."""

    id: str
    subject: str
    blob: str | None = None

    def __str__(self) -> str:
        return f"{self.id[:12]} ({self.subject})"


class History:
    """The commits that lead from the pinned release to `target`, or from there back to the pin if it is older.

    lack: why there are none; empty if there are.
    """

    def __init__(self, pin: Pin, target: Upstream):
        self.base = self.tip = None
        self.older = False
        self.lack = f"{target.label} has no history" if target.kind != "git" else ""
        if self.lack:
            return
        self.repository = Repository(target.repository)
        self.tip = target.commit
        self.base = next(
            filter(
                None, map(self.repository.commit, filter(None, (pin.commit, pin.tag, f"v{pin.release}", pin.release)))
            ),
            None,
        )
        shallow = "the clone is shallow and " if self.repository.is_shallow() else ""
        if self.base is None:
            self.lack = f"{shallow or 'the clone '}does not have {pin.tag}"
        elif not (merge_base := self.repository.merge_base(self.base, self.tip)):
            self.lack = f"{shallow}has no commit that {pin.tag} and {target.commit[:12]} both descend from"
        else:
            self.older = merge_base == self.tip != self.base

    def commits(self, paths: list[str]) -> list[Commit]:
        """The commits that changed any of the paths, from the pin on; ToolError if there is no history."""
        if self.lack:
            raise ToolError(f"no history between the pin and this upstream: {self.lack}")
        start, end = (self.tip, self.base) if self.older else (self.base, self.tip)
        found = self.repository.log(start, end, paths)
        return [Commit(*each) for each in (reversed(found) if self.older else found)]

    def changed(self, path: str, block: list[bytes]) -> str:
        """The commit since which consecutive lines of a pinned file are no longer there; empty if it cannot be told."""
        if self.lack or not block:
            return ""
        try:
            commits = self.commits([path])
            if self.older:  # from the pin backwards: the commit that brought the lines is the last that has them
                for commit, parent in zip(commits, [*commits[1:], None], strict=True):
                    if parent and not self._has(parent.blob, block):
                        return f"brought by commit {commit}, which this upstream lacks"
                return f"brought by commit {commits[-1]}, which this upstream lacks" if commits else ""
            for commit in commits:
                if not self._has(commit.blob, block):
                    return f"changed by commit {commit}"
        except ToolError as error:
            return f"the commit cannot be told: {error.message}"
        return ""

    def _has(self, blob: str | None, block: list[bytes]) -> bool:
        return blob is not None and bool(placement.find(block, placement.split(self.repository.read([blob])[blob])))
