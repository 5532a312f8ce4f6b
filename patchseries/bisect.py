"""`apply.py --bisect REF`: since when does each patch no longer fit?

Owns the search between the pin and another upstream: over the commits of a clone that change a file the series touches
or watches, or over releases. It halves, so it finds the one change of a patch that was clean before and is not after; a
patch that came to fit again in between is not noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version
from rich.table import Table

from patchseries import check, header, series, upstream, wheel
from patchseries.build import Project
from patchseries.check import Baseline, Report, SymbolState
from patchseries.console import Console
from patchseries.errors import ToolError
from patchseries.history import History
from patchseries.store import Store
from patchseries.upstream import Upstream


@dataclass(frozen=True)
class Point:
    """A place between the pin and the target: `name` for people, and how to get its upstream."""

    name: str
    get: Callable[[], Upstream]


@dataclass(frozen=True)
class Change:
    """Since when a patch is something: the first point where it is, and what it is there. None: it never is."""

    point: str
    what: str


@dataclass(frozen=True)
class Origin:
    """One patch. drift: since when it is not clean, or what it relies on is not the same. failure: since when it does
    not go in."""

    patch: str
    drift: Change | None
    failure: Change | None


def bisect(project: Project, store: Store, console: Console, ref: str, source: str | None) -> None:
    """Print the origin of each patch's trouble. ToolError with the exit status of the target unless it is clean."""
    base = check.baseline(project, store, console)
    target = check.find_upstream(base.pin, store, console, ref, source)
    points = _points(base, store, console, target)
    reports = _Reports(base, store, console, points)
    found = [_origin(step.patch.name, number, len(points), reports) for number, step in enumerate(base.steps)]
    table = Table("patch", "not clean since", "as", "does not go in since", "as", box=None, pad_edge=False)
    for each in found:
        cells = [(change.point, change.what) if change else ("", "") for change in (each.drift, each.failure)]
        table.add_row(each.patch, *cells[0], *cells[1])
    console.table(table)
    kind = "releases" if target.kind == "wheel" else "commits"
    console.result(
        f"{len(found)} patches, {len(points)} {kind} from the pin to {target.label}, {reports.count} checked"
    )
    if code := reports.at(len(points) - 1).code:
        raise ToolError(f"bisect: {ref} {reports.at(len(points) - 1).verdict}", code)


def _points(base: Baseline, store: Store, console: Console, target: Upstream) -> list[Point]:
    """The places after the pin, in order; the last one is the target. ToolError if there is no way there."""
    if target.kind == "git":
        history = History(base.pin, target)
        watched = [entry.partition("::")[0] for s in base.steps for entry in header.entries(s.patch, "Watches")]
        paths = sorted({*series.touched(step.patch for step in base.steps), *watched})
        commits = history.commits(paths)
        points = [
            Point(
                str(commit),
                lambda commit=commit: upstream.from_git(base.pin, store, console, target.location, commit.id),
            )
            for commit in commits
        ]
        end = Point(f"{target.commit[:12]} (as given)", lambda: target)
        if history.older:  # the target lacks these commits: from the pin backwards each is undone
            undone = [f"before {commit}" for commit in commits] or [end.name]
            return [replace(point, name=name) for point, name in zip([*points[1:], end], undone, strict=False)]
        return points if commits and commits[-1].id == target.commit else [*points, end]
    if target.kind == "wheel" and target.file:
        wanted = Version(wheel.release_of(target.file))
        start = Version(base.pin.release)
        known = [v for v in _releases(base, store, console) if min(start, wanted) <= v <= max(start, wanted)]
        between = sorted({*known, wanted} - {start}, reverse=wanted < start)
        return [
            Point(str(v), lambda v=v: target if v == wanted else upstream.release(base.pin, store, console, str(v)))
            for v in between
        ]
    if target.tree == base.tree:
        raise ToolError(f"{target.label} is the pin: there is nothing between them")
    raise ToolError(f"{target.label} has no history: bisect over releases, or over the commits of a clone (--source)")


def _releases(base: Baseline, store: Store, console: Console) -> list[Version]:
    """The releases that the index or the cache has."""
    names = [wheel.release_of(path) for path in (store.cache / "wheels").glob(f"{base.pin.package}-*.whl")]
    try:
        names += wheel.releases(base.pin.package)
    except ToolError as error:
        console.note(f"{error.message}: only the releases in the cache are looked at")
    found = []
    for name in names:
        try:
            found.append(Version(name))
        except InvalidVersion:
            continue
    return found


class _Reports:
    """The check of each point, made when it is asked for."""

    def __init__(self, base: Baseline, store: Store, console: Console, points: list[Point]):
        self.base, self.store, self.console, self.points = base, store, console, points
        self.known: dict[int, Report] = {}

    @property
    def count(self) -> int:
        return len(self.known)

    def at(self, index: int) -> Report:
        if index not in self.known:
            point = self.points[index]
            found = point.get()
            with self.console.step(f"Checking {point.name}"):
                self.known[index] = check.judge(self.store, self.base, found)
        return self.known[index]


def _origin(name: str, number: int, count: int, reports: _Reports) -> Origin:
    def drifted(report: Report) -> str:
        verdict = report.patches[number].verdict
        differing = [
            f"{symbol.symbol.rpartition('::')[2]} {symbol.verdict}"
            for symbol in report.symbols
            if name in symbol.patches and symbol.verdict is not SymbolState.SAME
        ]
        return verdict.value if verdict.code else ", ".join(differing)

    def failed(report: Report) -> str:
        verdict = report.patches[number].verdict
        return verdict.value if verdict.failed else ""

    return Origin(name, *(_first(condition, count, reports) for condition in (drifted, failed)))


def _first(condition: Callable[[Report], str], count: int, reports: _Reports) -> Change | None:
    """The first point where a condition holds, if it holds at the last one and not at the pin."""
    if not condition(reports.at(count - 1)):
        return None
    low, high = -1, count - 1  # it does not hold at low (-1 is the pin), and holds at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if condition(reports.at(middle)) else (middle, high)
    return Change(reports.points[high].name, condition(reports.at(high)))
