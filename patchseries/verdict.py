"""Does a patch fit a tree, and is it still the same change there?

Owns the verdicts on hunks, files and patches. That a text matches proves little: a hunk fits only if its changed lines
stand in the same function, class and block as at the pin, and if no other place could be meant. What cannot be proven
is ambiguous, not clean. The patch as a whole is applied by `chain`, as a build does it; both must put it in one place.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from patchseries import chain, placement, symbols
from patchseries.chain import Step
from patchseries.errors import CONFLICT, DRIFT, OK, ToolError
from patchseries.listing import EMPTY_BLOB
from patchseries.ownership import HunkName, Needs
from patchseries.patchfile import FileDiff, Hunk
from patchseries.placement import LineMap
from patchseries.store import Store
from patchseries.symbols import Position


class Verdict(StrEnum):
    """From best to worst. `FAILED` are those with which a patch does not go in as it is."""

    CLEAN = "clean"
    OFFSET = "offset"
    UPSTREAM = "already upstream"
    BLOCKED = "blocked"
    FUZZ = "fuzz"
    MISPLACED = "misplaced"
    AMBIGUOUS = "ambiguous"
    CONFLICT = "conflict"
    ERROR = "error"

    @property
    def failed(self) -> bool:
        return self not in (Verdict.CLEAN, Verdict.OFFSET, Verdict.UPSTREAM)

    @property
    def code(self) -> int:
        """Exit status that this verdict asks for."""
        return OK if self is Verdict.CLEAN else CONFLICT if self.failed else DRIFT


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    order = list(Verdict)
    return max(verdicts, key=order.index)


@dataclass(frozen=True)
class HunkVerdict:
    """One hunk, or what a patch does to a file without a hunk (number 0).

    path: at the pin. symbol: the function or class it edits there, empty at module level. stated: its line in the
    patch. line: where it landed, or where its lines stand, in the file before it; None if nowhere. cause: why it is not
    clean. blocked_by: patches whose lines it needs.
    """

    path: str
    number: int
    verdict: Verdict
    symbol: str = ""
    stated: int = 0
    line: int | None = None
    cause: str = ""
    blocked_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class PatchVerdict:
    """One patch. after: the tree with those of its hunks that fit. blocked_by: failed patches that it depends on."""

    name: str
    verdict: Verdict
    hunks: tuple[HunkVerdict, ...]
    after: str
    cause: str = ""
    blocked_by: tuple[str, ...] = ()


def judge(
    store: Store, pinned: Step, tree: str, needs: Needs, failed: set[HunkName], renamed: dict[str, str]
) -> PatchVerdict:
    """Judge a patch on a tree.

    pinned: the patch applied at the pin. failed: hunks of earlier patches that are not in `tree`. renamed: what
    upstream renamed since the pin, old path -> new path.
    """
    hunks: list[HunkVerdict] = []
    fitting: list[FileDiff] = []
    name = pinned.patch.name
    for diff in pinned.patch.files:
        blockers = {
            number: tuple(sorted({patch for patch, *_ in needs.get((name, diff.path, number), frozenset()) & failed}))
            for number in range(len(diff.hunks) + 1)
        }
        found, part = _File(store, pinned, tree, diff, blockers, renamed).judge()
        hunks += found
        fitting += [part] if part else []
    verdicts = [hunk.verdict for hunk in hunks]
    verdict, cause = worst(verdicts), ""
    if Verdict.UPSTREAM in verdicts and not verdict.failed and set(verdicts) != {Verdict.UPSTREAM}:
        verdict = Verdict.CONFLICT
        cause = (
            f"{verdicts.count(Verdict.UPSTREAM)} of its {len(verdicts)} hunks are already upstream, the rest applies"
        )
    after = tree
    if fitting:
        whole = all(each in (Verdict.CLEAN, Verdict.OFFSET) for each in verdicts)
        try:
            step = chain.apply_patch(
                store, tree, pinned.patch if whole else replace(pinned.patch, files=tuple(fitting))
            )
            after = step.after
            if whole and (wrong := _disagreement(step, hunks)):
                raise ToolError(wrong)
        except ToolError as error:
            verdict, cause = Verdict.ERROR, f"GNU patch does not do what was foreseen: {error.message}"
    return PatchVerdict(pinned.patch.name, verdict, tuple(hunks), after, cause)


def _disagreement(step: Step, hunks: list[HunkVerdict]) -> str | None:
    """Where GNU patch put a hunk elsewhere than judged."""
    offsets = {(path, number): lines for path, number, lines in step.offsets}
    for hunk in hunks:
        if (
            hunk.number
            and hunk.line is not None
            and hunk.line - hunk.stated != offsets.get((hunk.path, hunk.number), 0)
        ):
            return f"hunk {hunk.number} of {hunk.path} landed at another line than {hunk.line}"
    return None


class _File:
    """One file of a patch, at the pin and in the tree that is judged."""

    def __init__(
        self, store: Store, pinned: Step, tree: str, diff: FileDiff, blockers: dict[int, tuple[str, ...]],
        renamed: dict[str, str],
    ):  # fmt: skip
        self.store, self.diff, self.tree, self.blockers, self.renamed = store, diff, tree, blockers, renamed
        self.listing = store.listing(tree)
        self.before = (store.file(pinned.before, diff.old) if diff.old else None) or b""
        self.after = (store.file(pinned.after, diff.new) if diff.new else None) or b""
        self.after_entry = store.listing(pinned.after).get(diff.new) if diff.new else None
        self.python = diff.path.endswith(".py")

    def judge(self) -> tuple[list[HunkVerdict], FileDiff | None]:
        """The verdicts, and the part of the diff that fits the tree as it stands there."""
        if settled := self.settled():
            verdict, cause = settled
            return [self.hunk(number, verdict, cause) for number in self.numbers()], None
        problem = chain.precondition(self.diff, self.listing)
        if self.diff.old is not None and self.diff.old not in self.listing:
            problem = f"`{self.diff.old}` does not exist, and no file is like it"
        if problem:
            found = [
                self.hunk(number, Verdict.BLOCKED, "") if self.blockers[number] else
                self.hunk(number, Verdict.CONFLICT, problem)
                for number in self.numbers()
            ]  # fmt: skip
            return found, None
        if not self.diff.hunks:
            if self.diff.old is None or self.diff.new is not None or self.listing[self.diff.old].blob == EMPTY_BLOB:
                return [self.hunk(0, Verdict.CLEAN, "")], self.diff
            return [self.hunk(0, Verdict.CONFLICT, f"`{self.diff.old}` is no longer empty")], None
        if self.diff.old is None:
            return [self.hunk(number, Verdict.CLEAN, "", 1) for number in self.numbers()], self.diff
        return self.judge_hunks()

    def numbers(self) -> Iterator[int]:
        return iter(range(1, len(self.diff.hunks) + 1)) if self.diff.hunks else iter([0])

    def settled(self) -> tuple[Verdict, str] | None:
        """What the tree has of the file already, whatever its hunks say; None if they decide."""
        old, new = self.diff.old, self.diff.new
        there = self.listing.get(new) if new else None
        if old is not None and old not in self.listing and old in self.renamed and self.renamed[old] != new:
            there = placement.split(self.store.file(self.tree, self.renamed[old]) or b"")
            matching = sum(place is not None for place in placement.fit(self.diff.hunks, there))
            cause = f"`{old}` is renamed to `{self.renamed[old]}`"
            return Verdict.CONFLICT, f"{cause}, where {matching} of {len(self.diff.hunks)} hunks match"
        if new is None and old not in self.listing and not any(self.blockers.values()):
            return Verdict.UPSTREAM, f"`{old}` is gone upstream too"
        if old is None and there is not None:
            if there.blob == self.after_entry.blob:
                return Verdict.UPSTREAM, f"`{new}` exists with the same bytes"
            return Verdict.CONFLICT, f"`{new}` is new in the patch and exists with other bytes: nothing is overwritten"
        if self.diff.renamed and old not in self.listing and there is not None:
            same = there.blob == self.after_entry.blob
            return (Verdict.UPSTREAM, f"`{old}` is renamed to `{new}` with the same bytes") if same else None
        if not self.diff.hunks and there is not None and self.diff.new_mode == there.mode != self.diff.old_mode:
            return Verdict.UPSTREAM, f"`{new}` has mode {there.mode}"
        return None

    def hunk(self, number: int, verdict: Verdict, cause: str, place: int | None = None) -> HunkVerdict:
        stated, symbol = 0, ""
        if number:
            stated = max(self.diff.hunks[number - 1].old_start, 1)
            symbol = self.symbol(self.diff.hunks[number - 1])
        blocked = self.blockers.get(number, ()) if verdict is Verdict.BLOCKED else ()
        if blocked:
            cause = f"needs lines of {', '.join(blocked)}"
        return HunkVerdict(self.diff.path, number, verdict, symbol, stated, place, cause, blocked)

    def symbol(self, hunk: Hunk) -> str:
        """The function or class that most of the changed lines are in at the pin."""
        if not self.python:
            return ""
        found = self.pinned_positions(hunk)
        return Counter(position.symbol for position in found).most_common(1)[0][0] if found else ""

    def judge_hunks(self) -> tuple[list[HunkVerdict], FileDiff | None]:
        content = self.store.file(self.tree, self.diff.old)
        text, hunks = placement.split(content), self.diff.hunks
        places = placement.fit(hunks, text)
        if content == self.before:
            found = [self.hunk(n, Verdict.CLEAN, "", max(hunks[n - 1].old_start, 1)) for n in self.numbers()]
            return found, self.diff
        if self.python and symbols.parse(self.before) and not symbols.parse(content):
            cause = f"`{self.diff.old}` is not Python that this interpreter reads: where a hunk lands cannot be judged"
            return [self.hunk(number, Verdict.ERROR, cause) for number in self.numbers()], None
        landed = [(place, hunk) for place, hunk in zip(places, hunks, strict=True) if place is not None]
        result = placement.join(placement.splice(text, landed))
        lines = LineMap.between(self.before, content)
        found: list[HunkVerdict] = []
        shift = 0
        for number, (hunk, place) in enumerate(zip(hunks, places, strict=True), 1):
            if place is None:
                found.append(self.rejected(number, hunk, content, text, lines))
                continue
            found.append(self.landed(number, hunk, place, shift, content, text, result, lines))
            shift += hunk.new_count - hunk.old_count
        fitting = [
            replace(hunk, old_start=place + 1 if hunk.old_count else place)
            for hunk, place, each in zip(hunks, places, found, strict=True)
            if each.verdict in (Verdict.CLEAN, Verdict.OFFSET)
        ]
        complete = len(fitting) == len(hunks)
        divisible = complete or (self.diff.new is not None and not self.diff.renamed)
        part = replace(self.diff, hunks=tuple(fitting)) if fitting and divisible else None
        return found, part

    # A hunk whose lines match

    def landed(
        self, number: int, hunk: Hunk, place: int, shift: int, content: bytes, text: list[bytes], result: bytes,
        lines: LineMap,
    ) -> HunkVerdict:  # fmt: skip
        line, stated = place + 1, max(hunk.old_start, 1)
        if self.python:
            there = self.positions(hunk, content, place, result, place + shift)
            pinned = self.pinned_positions(hunk)
            if there != pinned:
                here, was = next((a, b) for a, b in zip(there, pinned, strict=True) if a != b)
                cause = f"its lines are in `{was}` at the pin; at line {line} they would be in `{here}`"
                return self.hunk(number, Verdict.MISPLACED, cause, line)
        if cause := self.doubt(hunk, place, text, lines):
            return self.hunk(number, Verdict.AMBIGUOUS, cause, line)
        if line != stated:
            return self.hunk(number, Verdict.OFFSET, f"{line - stated:+d} lines", line)
        return self.hunk(number, Verdict.CLEAN, "", line)

    def doubt(self, hunk: Hunk, place: int, text: list[bytes], lines: LineMap) -> str | None:
        """Why the place may not be the one that is meant, though its lines and its block are right."""
        base = placement.split(self.before)
        old, new = placement.sides(hunk)
        if len(applied := placement.find(new, text)) > len(placement.find(new, base)):
            return f"both ways: it applies at line {place + 1}, and its result stands at line {applied[0] + 1}"
        if (copy := self.copied(hunk, text, base)) is not None:
            return f"it applies at line {place + 1}, and lines that it adds stand at line {copy + 1} already"
        home = max(hunk.old_start - 1, 0)
        telling = [index for index, line in enumerate(old) if _tells(line)] or list(range(len(old)))
        origins = [lines.backward.get(place + index) for index in telling]
        own = sum(origin == home + index for origin, index in zip(origins, telling, strict=True))
        foreign = sum(origin not in (None, home + i) for origin, i in zip(origins, telling, strict=True))
        astray = sum(lines.forward.get(home + index) not in (None, place + index) for index in telling)
        once = len(placement.find(old, text)) == 1 == len(placement.find(old, base))
        if own == len(telling):
            same = len(placement.find(old, text)) == len(placement.find(old, base))
            return (
                None
                if once or same
                else f"its lines stand {self._times(old, base)} at the pin and "
                + (f"{self._times(old, text)} here: which is meant cannot be told")
            )
        if once and (own > max(foreign, astray) or foreign == astray == 0):
            return None
        if not once:
            return f"its lines stand {self._times(old, text)} here: which is meant cannot be told"
        if astray > foreign:
            return f"its lines match at line {place + 1}, and those of the pin seem to stand elsewhere now"
        return f"its lines match at line {place + 1}, where upstream has lines that stood elsewhere at the pin"

    def copied(self, hunk: Hunk, text: list[bytes], base: list[bytes]) -> int | None:
        """Where upstream has lines that the hunk adds, in the function and block where it adds them."""
        for start, run in _added_runs(hunk):
            copies = placement.find(run, text)
            if len(copies) > len(placement.find(run, base)):
                home = symbols.position(self.after, hunk.new_start + start) if self.python else None
                content = placement.join(text)
                for copy in copies:
                    if not self.python or symbols.position(content, copy + 1) == home:
                        return copy
        return None

    @staticmethod
    def _times(wanted: list[bytes], text: list[bytes]) -> str:
        count = len(placement.find(wanted, text))
        return "once" if count == 1 else f"{count} times"

    # A hunk whose lines do not match

    def rejected(self, number: int, hunk: Hunk, content: bytes, text: list[bytes], lines: LineMap) -> HunkVerdict:
        forward = placement.places(hunk, text)
        base = placement.split(self.before)
        _old, new = placement.sides(hunk)
        reverse = placement.find(new, text)
        proven = [place for place in reverse if self.stands_there(hunk, content, place)]
        if len(reverse) > len(placement.find(new, base)):
            if forward:
                cause = f"both ways: its lines stand at line {forward[0] + 1}, its result at line {reverse[0] + 1}"
                return self.hunk(number, Verdict.AMBIGUOUS, cause, forward[0] + 1)
            if len(proven) == 1:
                return self.hunk(number, Verdict.UPSTREAM, f"its result stands at line {proven[0] + 1}", proven[0] + 1)
            if proven:
                places = ", ".join(str(place + 1) for place in proven)
                return self.hunk(number, Verdict.AMBIGUOUS, f"its result stands at lines {places}", proven[0] + 1)
        if self.blockers[number]:
            return self.hunk(number, Verdict.BLOCKED, "")
        if forward:
            cause = f"its lines stand at line {forward[0] + 1}, before those of the hunk that precedes it"
            return self.hunk(number, Verdict.CONFLICT, cause, forward[0] + 1)
        if reverse and len(reverse) > len(placement.find(new, base)):
            cause = f"its result stands at line {reverse[0] + 1}, in another function or block"
            return self.hunk(number, Verdict.CONFLICT, cause, reverse[0] + 1)
        return self.fuzzy(number, hunk, content, text, lines)

    def stands_there(self, hunk: Hunk, content: bytes, place: int) -> bool:
        """Whether a hunk's result at a place is where the pin has it: same function, class and block."""
        if not self.python:
            return True
        there = [symbols.position(content, place + 1 + n) for n in _new_indexes(hunk)]
        here = [symbols.position(self.after, hunk.new_start + n) for n in _new_indexes(hunk)]
        return there == here

    def fuzzy(self, number: int, hunk: Hunk, content: bytes, text: list[bytes], lines: LineMap) -> HunkVerdict:
        differs = self.difference(hunk, text, lines)
        for fuzz in range(1, placement.MOST_FUZZ + 1):
            found = placement.places(hunk, text, fuzz)
            if not found:
                continue
            place = min(found, key=lambda place: abs(place + 1 - hunk.old_start))
            cut, trimmed = placement.trimmed(hunk, fuzz)
            result = placement.join(placement.splice(text, [(place + cut, trimmed)]))
            if self.python and self.positions(hunk, content, place, result, place) != self.pinned_positions(hunk):
                other = symbols.position(content, place + cut + 1)
                cause = f"fuzz {fuzz} would put it at line {place + 1}, into `{other}`; {differs}"
                return self.hunk(number, Verdict.MISPLACED, cause, place + 1)
            copy = self.copied(hunk, text, placement.split(self.before))
            if copy is not None or len(found) > 1:
                why = f"{len(found)} places fit" if copy is None else f"lines that it adds stand at line {copy + 1}"
                return self.hunk(number, Verdict.CONFLICT, f"{why}; {differs}", place + 1)
            return self.hunk(number, Verdict.FUZZ, f"fits with fuzz {fuzz} at line {place + 1}; {differs}", place + 1)
        return self.hunk(number, Verdict.CONFLICT, differs)

    @staticmethod
    def difference(hunk: Hunk, text: list[bytes], lines: LineMap) -> str:
        """What upstream did to the lines of a hunk: the first that is changed, or that others came to stand before."""
        home, (old, _new) = hunk.old_start - 1, placement.sides(hunk)
        there = [lines.forward.get(home + index) for index in range(len(old))]
        if all(place is None for place in there):
            return f"upstream has none of its lines, such as {_quoted(max(old, key=lambda line: len(line.strip())))}"
        lost = next((n for n in range(len(old)) if there[n] is None and _tells(old[n])), None)
        if lost is not None:
            before = next((there[n] + 1 for n in range(lost - 1, -1, -1) if there[n] is not None), None)
            place = before if before is not None else next(p for p in there[lost:] if p is not None) - 1
            instead = text[place] if 0 <= place < len(text) else b""
            if instead.strip() == old[lost].strip():
                return f"at line {place + 1} upstream has other blanks in {_quoted(instead)}"
            return f"at line {place + 1} the patch has {_quoted(old[lost])}, upstream {_quoted(instead)}"
        known = [place for place in there if place is not None]
        for one, other in zip(known, known[1:], strict=False):
            if other > one + 1:
                return f"at line {one + 2} upstream has {_quoted(text[one + 1])} between its lines"
        return f"upstream changed empty lines or comments near line {known[0] + 1}"

    # Positions

    def pinned_positions(self, hunk: Hunk) -> list[Position]:
        return self.positions(hunk, self.before, max(hunk.old_start - 1, 0), self.after, max(hunk.new_start - 1, 0))

    @staticmethod
    def positions(hunk: Hunk, before: bytes, old_place: int, after: bytes, new_place: int) -> list[Position]:
        """Where each changed line stands: removed ones in the text before, added ones in the text after. Empty lines
        and comments do not count unless there is nothing else: whose they are depends on what follows them."""
        found: list[tuple[bool, Position]] = []
        for line in hunk.lines:
            sign = line[:1]
            if sign == b"-":
                found.append((_tells(line[1:]), symbols.position(before, old_place + 1)))
            elif sign == b"+":
                found.append((_tells(line[1:]), symbols.position(after, new_place + 1)))
            old_place += sign in (b" ", b"-")
            new_place += sign in (b" ", b"+")
        return [position for tells, position in found if tells] or [position for _tells, position in found]


def _tells(line: bytes) -> bool:
    """Whether a line is more than layout."""
    text = line.strip()
    return bool(text) and not text.startswith(b"#")


def _quoted(line: bytes) -> str:
    """A line of code in a sentence; Markdown leaves it alone."""
    text = line.decode(errors="replace").split("\n")[0].strip().replace("`", "'")
    return f"`{text}`" if text else "nothing"


def _new_indexes(hunk: Hunk) -> list[int]:
    """Indexes in the new side of the added lines, or of the neighbours of what is removed."""
    added, around, index = [], [], 0
    for line in hunk.lines:
        if line[:1] == b"+":
            added.append(index)
        if line[:1] == b"-":
            around += [each for each in (index - 1, index) if 0 <= each < hunk.new_count and each not in around]
        index += line[:1] in b" +"
    return added or around


def _added_runs(hunk: Hunk) -> list[tuple[int, list[bytes]]]:
    """Runs of added lines that say enough to be recognized elsewhere: (index of the first in the new side, lines)."""
    runs: list[tuple[int, list[bytes]]] = []
    index, sign = 0, b""
    for line in hunk.lines:
        before, sign = sign, line[:1]
        if sign == b"+":
            if before != b"+":
                runs.append((index, []))
            runs[-1][1].append(line[1:])
        index += sign in (b" ", b"+")
    return [(start, run) for start, run in runs if sum(len(line.strip()) for line in run if _tells(line)) >= 12]
