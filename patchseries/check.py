"""`apply.py --check`: does the series still fit, and does what it relies on still mean the same?

Owns the judgement of a whole series on one upstream: the patches in order on top of one another, past the first
failure; the upstream symbols behind them; the causes. It works on git trees only: nothing in the checkout is touched.
"""

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from patchseries import chain, header, ownership, pin, placement, series, symbols, upstream, verdict
from patchseries.build import Project
from patchseries.chain import Step
from patchseries.console import Console
from patchseries.errors import CONFLICT, DRIFT, OK, USAGE, ToolError
from patchseries.history import History
from patchseries.moves import Moves
from patchseries.ownership import HunkName, Needs
from patchseries.pin import Pin
from patchseries.placement import LineMap
from patchseries.store import Store
from patchseries.upstream import Upstream
from patchseries.verdict import HunkVerdict, PatchVerdict, Verdict


class SymbolState(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    MOVED = "moved"
    GONE = "gone"


@dataclass(frozen=True)
class SymbolVerdict:
    """An upstream function, class, constant or file behind the series: `path::name` at the pin.

    relation: `watches` if a header names it, `edits` if a hunk stands in it. patches: those that rely on it.
    """

    symbol: str
    verdict: SymbolState
    relation: str
    patches: tuple[str, ...]
    cause: str = ""


@dataclass(frozen=True)
class Report:
    """One upstream. upstream is None, and error says why, if it could not be had."""

    ref: str
    upstream: Upstream | None
    patches: tuple[PatchVerdict, ...] = ()
    symbols: tuple[SymbolVerdict, ...] = ()
    history: str = field(default="", repr=False)
    error: str = ""

    @property
    def code(self) -> int:
        """Exit status: 0 clean, 1 drift, 2 conflict, 3 not to be had."""
        if self.upstream is None:
            return USAGE
        drift = any(symbol.verdict is not SymbolState.SAME for symbol in self.symbols)
        return max([each.verdict.code for each in self.patches] + [DRIFT if drift else OK])

    @property
    def verdict(self) -> str:
        return {OK: "clean", DRIFT: "drift", CONFLICT: "conflict", USAGE: "error"}[self.code]


@dataclass(frozen=True)
class Baseline:
    """The series at the pin: what every upstream is compared with."""

    pin: Pin
    upstream: Upstream
    digest: str
    steps: list[Step]
    needs: Needs

    @property
    def tree(self) -> str:
        return self.upstream.tree


def baseline(project: Project, store: Store, console: Console) -> Baseline:
    """Apply the series at the pin; ToolError (code 2) if it does not even apply there."""
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    found = upstream.pinned(pinned, store, console)
    with console.step(f"Applying {len(patches)} patches to the pin"):
        steps = chain.apply_series(store, found.tree, patches)
    digest = series.digest(project.series, project.patches)
    return Baseline(pinned, found, digest, steps, ownership.needs(store, steps))


def find_upstream(pinned: Pin, store: Store, console: Console, ref: str | None, source: str | None) -> Upstream:
    """What a REF of the command line names: a release, a directory, archive or wheel, or a git ref of `source` or of
    the pinned git URL. A clone given as a directory means its HEAD."""
    if source is None and ref and Path(ref).expanduser().exists():
        head = "HEAD" if (Path(ref).expanduser() / ".git").exists() else None
        return upstream.resolve(pinned, store, console, ref, head)
    return upstream.resolve(pinned, store, console, source, ref)


def check(
    project: Project, store: Store, console: Console, refs: Sequence[str | None], source: str | None = None
) -> tuple[Baseline, list[Report]]:
    """Judge the series on each upstream, None being the pin, or `source` itself. One that cannot be had does not keep
    the others from being judged."""
    base = baseline(project, store, console)
    reports = []
    for ref in refs:
        name = ref or source or base.pin.release
        try:
            found = find_upstream(base.pin, store, console, ref, source)
            with console.step(f"Checking {len(base.steps)} patches against {name}"):
                reports.append(replace(judge(store, base, found), ref=name))
        except ToolError as error:
            reports.append(Report(name, None, error="; ".join([error.message, *error.details])))
    return base, reports


def judge(store: Store, base: Baseline, target: Upstream) -> Report:
    """Every patch on `target`, cumulatively, and every symbol behind the series."""
    moves = Moves(store, base.tree, target.tree)
    history = History(base.pin, target)
    causes = _Causes(store, base, target, moves, history)
    tree, failed, found = target.tree, set(), []
    failed_patches: list[str] = []
    for step in base.steps:
        judged = verdict.judge(store, step, tree, base.needs, failed, moves.renamed)
        blockers = tuple(name for name in header.entries(step.patch, "Depends") if name in failed_patches)
        blockers = tuple(dict.fromkeys([*blockers, *(name for hunk in judged.hunks for name in hunk.blocked_by)]))
        hunks = tuple(causes.explain(step, hunk) for hunk in judged.hunks)
        judged = replace(judged, hunks=hunks, blocked_by=blockers)
        if blockers and not judged.verdict.failed:
            judged = replace(judged, verdict=Verdict.BLOCKED, cause=f"depends on {', '.join(blockers)}")
        bad: set[HunkName] = {(step.patch.name, h.path, h.number) for h in judged.hunks if h.verdict.failed}
        if judged.verdict is Verdict.ERROR:
            bad = {(step.patch.name, hunk.path, hunk.number) for hunk in judged.hunks}
        failed |= bad
        if bad or judged.verdict is Verdict.BLOCKED:
            failed_patches.append(step.patch.name)
        found.append(judged)
        tree = judged.after
    upstreamed = {each.name for each in found if each.verdict is Verdict.UPSTREAM}
    return Report("", target, tuple(found), tuple(_symbols(store, base, target, moves, upstreamed)), history.lack)


def judge_symbols(store: Store, base: Baseline, target: Upstream) -> list[SymbolVerdict]:
    """Every symbol behind the series, whether or not its patches fit."""
    return _symbols(store, base, target, Moves(store, base.tree, target.tree), set())


class _Causes:
    """Why a hunk does not fit: what upstream moved, and the commit that changed its lines."""

    def __init__(self, store: Store, base: Baseline, target: Upstream, moves: Moves, history: History):
        self.store, self.base, self.target, self.moves, self.history = store, base, target, moves, history

    def explain(self, step: Step, hunk: HunkVerdict) -> HunkVerdict:
        if not hunk.verdict.failed or hunk.verdict in (Verdict.BLOCKED, Verdict.ERROR):
            return hunk
        found = [hunk.cause, self.moved(hunk), self.commit(step, hunk)]
        return replace(hunk, cause="; ".join(filter(None, found)))

    def moved(self, hunk: HunkVerdict) -> str:
        pristine = self.store.file(self.base.tree, hunk.path)
        if not hunk.symbol or pristine is None or not symbols.defines(pristine, hunk.symbol):
            return ""
        there = self.store.file(self.target.tree, hunk.path)
        if there is not None and symbols.defines(there, hunk.symbol):
            return ""
        places = self.moves.of_symbol(hunk.path, hunk.symbol)
        if places:
            return f"`{hunk.symbol}` is now in {_listed(places)}"
        return f"`{_outermost(there, hunk.symbol)}` is gone"

    def commit(self, step: Step, hunk: HunkVerdict) -> str:
        diff = next(diff for diff in step.patch.files if diff.path == hunk.path)
        known = diff.old and hunk.number and not self.history.lack
        pristine = self.store.file(self.base.tree, diff.old) if known else None
        if pristine is None:
            return ""
        patched = diff.hunks[hunk.number - 1]
        origin = LineMap.between(pristine, self.store.file(step.before, diff.old)).backward
        start = patched.old_start - 1
        lines = [origin[n] for n in range(start, start + patched.old_count) if n in origin]
        block = placement.split(pristine)[min(lines) : max(lines) + 1] if lines else []
        return self.history.changed(diff.old, block)


def _symbols(store: Store, base: Baseline, target: Upstream, moves: Moves, upstreamed: set[str]) -> list[SymbolVerdict]:
    """The watched symbols of every header, then the functions that hunks stand in, each compared with the pin."""
    users: dict[tuple[str, str], list[str]] = {}
    for step in base.steps:
        for entry in header.entries(step.patch, "Watches"):
            users.setdefault(("watches", entry), []).append(step.patch.name)
    for step in base.steps:
        if step.patch.name in upstreamed:
            continue
        for entry in _edited_functions(store, base, step):
            if ("watches", entry) not in users:
                patches = users.setdefault(("edits", entry), [])
                patches += [step.patch.name] if step.patch.name not in patches else []
    found = []
    for (relation, entry), patches in users.items():
        state, cause = compare(store, base.tree, target.tree, moves, entry)
        found.append(SymbolVerdict(entry, state, relation, tuple(patches), cause))
    return found


def _edited_functions(store: Store, base: Baseline, step: Step) -> list[str]:
    """The upstream functions that hunks of a patch stand in; what the series itself added is no upstream symbol."""
    found: dict[str, None] = {}
    for diff in step.patch.files:
        pristine = store.file(base.tree, diff.old) if diff.old and diff.path.endswith(".py") else None
        for source, old in (
            ((store.file(step.before, diff.old), True), (store.file(step.after, diff.new), False))
            if (pristine is not None and diff.new is not None)
            else ()
        ):
            for hunk in diff.hunks:
                for line in hunk.changed_lines(old):
                    name = symbols.position(source, line).symbol
                    if name and symbols.is_function(pristine, name):
                        found[f"{diff.old}::{name}"] = None
    return list(found)


def compare(store: Store, before: str, after: str, moves: Moves, entry: str) -> tuple[SymbolState, str]:
    """The state of one symbol, `path::name` or a whole file `path`, in a later tree; and what to know about it."""
    path, _, name = entry.partition("::")
    source, there = store.file(before, path), store.file(after, path)
    if source is None or (name and not symbols.defines(source, name)):
        return SymbolState.GONE, "the pin does not define it: correct the header"
    if not name:
        if there is None:
            new = moves.renamed.get(path)
            return (SymbolState.MOVED, f"renamed to `{new}`") if new else (SymbolState.GONE, "the file is gone")
        same = symbols.same_module(source, there) if path.endswith(".py") else source == there
        return (SymbolState.SAME, "") if same else (SymbolState.CHANGED, "")
    meant = symbols.meaning(symbols.find(source, name))
    if there is not None and symbols.parse(there) is None:
        return SymbolState.CHANGED, "the file is not Python that this interpreter reads"
    if there is not None and symbols.defines(there, name):
        found = symbols.find(there, name)
        if symbols.meaning(found) == meant:
            return SymbolState.SAME, ""
        return SymbolState.CHANGED, f"now at line {found[0].lineno}, {_size(symbols.find(source, name), found)}"
    places = moves.of_symbol(path, name)
    if not places:
        return SymbolState.GONE, "the file is gone" if there is None else f"`{_outermost(there, name)}` is gone"
    now = symbols.find(store.file(after, places[0]), name)
    changed = "" if symbols.meaning(now) == meant else f", and changed ({_size(symbols.find(source, name), now)})"
    return SymbolState.MOVED, f"now in {_listed(places)}{changed}"


def _size(before: list[ast.stmt], after: list[ast.stmt]) -> str:
    """How much of a definition changed, in lines of code."""
    lines = list(difflib.unified_diff(symbols.code_lines(before), symbols.code_lines(after), n=0))[2:]
    return f"+{sum(line[0] == '+' for line in lines)} -{sum(line[0] == '-' for line in lines)} lines of code"


def _listed(paths: list[str]) -> str:
    return " or ".join(f"`{path}`" for path in paths)


def _outermost(source: bytes | None, name: str) -> str:
    """The class of a method if that is missing already, else the name."""
    outer = name.split(".")[0]
    return outer if source is None or not symbols.defines(source, outer) else name
