"""`apply.py --rebase REF`: the series moved onto another upstream.

Owns `rebase/`, which exists while a rebase is under way: the state, the working tree of a conflict, and the files that
are about to be written with those they replace. A patch is merged three ways: what leads from the pin before it to the
pin after it, into the new upstream with the patches before it. The checkout changes in one go at the end, and only when
every patch still says what it said, or its differences were accepted by name.
"""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from patchseries import build, catalogue, chain, check, export, header, intent, patchfile, pin, retired, series, wheel
from patchseries import upstream as upstreams
from patchseries.build import Project
from patchseries.chain import Step
from patchseries.check import Baseline, SymbolState
from patchseries.console import Console
from patchseries.errors import CONFLICT, DRIFT, ToolError
from patchseries.listing import Entry, Listing, scan
from patchseries.patchfile import PatchFile
from patchseries.store import Store
from patchseries.upstream import Upstream

SENTINEL = ".patchseries-rebase.json"
_MARKER = re.compile(rb"^(<{7}|\|{7}|>{7})( |$)", re.MULTILINE)
_LEFTOVER = re.compile(r"\.(orig|rej)$|~$")


@dataclass
class State:
    """A rebase under way.

    target: the upstream it goes to, as `Upstream`. base: tree of the pin. series: digest of the series it started from.
    done: [patch, tree before, tree after] on the target, for the patches that are through. stopped: what waits for a
    person, [patch, merged tree]. accepted: patches whose differences a person has accepted. writing: whether the
    checkout is being rewritten.
    """

    target: dict
    base: str
    series: str
    done: list[list[str]] = field(default_factory=list)
    stopped: list[str] | None = None
    accepted: list[str] = field(default_factory=list)
    writing: bool = False

    @property
    def upstream(self) -> Upstream:
        paths = {name: Path(self.target[name]) for name in ("file", "repository") if self.target[name]}
        return Upstream(**{**self.target, **paths})


def directory(project: Project) -> Path:
    return project.root / "rebase"


def read_state(project: Project) -> State | None:
    """The rebase under way, None if there is none. ToolError for a `rebase/` that is not the tool's."""
    place = directory(project)
    if not place.exists():
        return None
    try:
        return State(**json.loads((place / SENTINEL).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise ToolError(f"{place} was not made by this tool (no {SENTINEL} in it): move it away") from None


def start(project: Project, store: Store, console: Console, ref: str, source: str | None, accepted: list[str]) -> None:
    """Begin a rebase and go as far as it goes. ToolError: code 2 at a conflict, 1 if an intent has to be accepted."""
    with project.lock():
        if state := read_state(project):
            raise ToolError(
                f"a rebase onto {state.target['label']} is under way: `apply.py --continue` or `apply.py --abort`"
            )
        base = check.baseline(project, store, console)
        _known(base, accepted)
        target = check.find_upstream(base.pin, store, console, ref, source)
        if target.kind not in ("wheel", "git"):
            raise ToolError(
                f"{target.label} cannot be pinned, it has neither a version nor a commit: rebase onto a release, its "
                "wheel or a commit (`--check` takes a directory too)"
            )
        if target.tree == base.tree:
            raise ToolError(f"the series is on {target.label} already: nothing to rebase")
        place = directory(project)
        scratch = place.with_name(".rebase.new")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        facts = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(target).items()}
        state = State(facts, base.tree, base.digest, accepted=list(accepted))
        _save(scratch, state)
        scratch.rename(place)
        _advance(project, store, console, base, state)


def proceed(project: Project, store: Store, console: Console, accepted: list[str]) -> None:
    """Go on after a conflict is resolved, an intent accepted, or a run was killed."""
    with project.lock():
        state = _under_way(project)
        state.accepted += [name for name in accepted if name not in state.accepted]
        if state.writing:
            return _finish(project, console, state)
        base = check.baseline(project, store, console)
        if (base.tree, base.digest) != (state.base, state.series):
            raise ToolError(
                "the pin or the patches were changed since the rebase began: undo that, or `apply.py --abort`", DRIFT
            )
        _known(base, state.accepted)
        if state.stopped:
            _take_resolution(project, store, console, state)
        _advance(project, store, console, base, state)


def abort(project: Project, _store: Store, console: Console) -> None:
    """Give the rebase up: the checkout is as it was before."""
    with project.lock():
        state = _under_way(project)
        if state.writing:
            _install(project, directory(project) / "old")
        shutil.rmtree(directory(project))
    console.result(f"the rebase onto {state.target['label']} is given up: patches, series and pin are as before")


def _under_way(project: Project) -> State:
    state = read_state(project)
    if state is None:
        raise ToolError("no rebase is under way: `apply.py --rebase REF` begins one")
    return state


def _known(base: Baseline, names: list[str]) -> None:
    for name in names:
        if name not in [step.patch.name for step in base.steps]:
            raise ToolError(f"--accept {name}: the series has no such patch")


def _save(place: Path, state: State) -> None:
    scratch = place / (SENTINEL + ".new")
    scratch.write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
    scratch.replace(place / SENTINEL)


def _advance(project: Project, store: Store, console: Console, base: Baseline, state: State) -> None:
    place = directory(project)
    for step in base.steps[len(state.done) :]:
        before = state.done[-1][2] if state.done else state.target["tree"]
        merged = store.merge(step.before, before, step.after, step.patch.name)
        if merged.conflicts:
            _stop(project, store, state, step.patch.name, merged.tree)
            raise ToolError(
                f"{step.patch.name} conflicts with {state.target['label']} in {len(merged.conflicts)} files: resolve "
                f"them in {place / 'tree'}, then `apply.py --continue` (or `apply.py --abort`)",
                CONFLICT,
                [*merged.conflicts, *(text for text in merged.messages if not text.startswith("CONFLICT (content)"))],
            )
        if merged.tree == before:
            console.note(f"{step.patch.name}: {state.target['label']} has it already")
        state.done.append([step.patch.name, before, merged.tree])
        _save(place, state)
    _conclude(project, store, console, base, state)


def _stop(project: Project, store: Store, state: State, name: str, tree: str) -> None:
    """Lay the working tree of a conflict out, then say in the state that it is there."""
    place = directory(project)
    scratch = place / "tree.new"
    for leftover in (scratch, place / "tree"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch.mkdir()
    store.export(tree, scratch)
    scratch.rename(place / "tree")
    state.stopped = [name, tree]
    _save(place, state)


def _take_resolution(project: Project, store: Store, console: Console, state: State) -> None:
    name, merged = state.stopped
    place = directory(project) / "tree"
    before = state.done[-1][2] if state.done else state.target["tree"]
    found, old = scan(place), store.listing(before)
    changed = [path for path in found if found[path] != old.get(path)]
    if open_ := [path for path in changed if _MARKER.search((place / path).read_bytes())]:
        raise ToolError(f"{name}: conflict markers are left in {len(open_)} files", CONFLICT, open_)
    if leftovers := [path for path in changed if _LEFTOVER.search(path)]:
        raise ToolError(f"{name}: leftovers of a merge tool would get into the patch: remove them", CONFLICT, leftovers)
    store.write_blobs([place / path for path in changed if not (place / path).is_symlink()])
    state.done.append([name, before, store.write_tree(before, _changes(old, found))])
    state.stopped = None
    _save(directory(project), state)
    shutil.rmtree(place)
    console.note(f"{name}: resolved, {len(changed)} files")


def _changes(old: Listing, new: Listing) -> dict[str, Entry | None]:
    return {path: new.get(path) for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


def _conclude(project: Project, store: Store, console: Console, base: Baseline, state: State) -> None:
    """Every patch is through: make the new patches, check their intent, write."""
    steps, gone = [], []
    for step, (name, before, after) in zip(base.steps, state.done, strict=True):
        if before == after:
            gone.append(step.patch)
        else:
            made = export.patch_from_trees(store, name, step.patch.header, before, after)
            steps.append(Step(made, before, after))
    old = {step.patch.name: step for step in base.steps}
    refused = {}
    for step in steps:
        if (found := intent.differences(store, old[step.patch.name], step)) and step.patch.name not in state.accepted:
            refused[step.patch.name] = found
    proofs = {patch.name: _proof(store, base, state, patch) for patch in gone}
    for patch in gone:
        if proofs[patch.name] is None and patch.name not in state.accepted:
            refused[patch.name] = ["nothing is left of it, and upstream does not have it: it would be dropped"]
    for name, found in refused.items():
        console.result(f"{name}: {len(found)} differences")
        for line in found:
            console.result(f"  {line}")
    if refused:
        raise ToolError(
            f"{len(refused)} of {len(base.steps)} patches do not say what they said: accept them by name, `apply.py "
            f"--continue {' '.join(f'--accept {name}' for name in refused)}`, or `apply.py --abort`",
            DRIFT,
        )
    if not steps:
        raise ToolError(f"{state.target['label']} has every patch: no series is left, nothing is written", DRIFT)
    _prepare(project, store, console, base, state, steps, [(p, proofs[p.name] or "accepted by name") for p in gone])
    state.writing = True
    _save(directory(project), state)
    _finish(project, console, state)
    _warn(store, console, base, state)


def _proof(store: Store, base: Baseline, state: State, patch: PatchFile) -> str | None:
    """Why a patch of which nothing is left may go: the merge itself left nothing, not a person."""
    index, step = next((n, step) for n, step in enumerate(base.steps) if step.patch.name == patch.name)
    before = state.done[index][1]
    merged = store.merge(step.before, before, step.after, patch.name)
    if merged.conflicts or merged.tree != before:
        return None
    return f"to merge it into {state.target['label']} changes nothing"


def _prepare(
    project: Project, store: Store, console: Console, base: Baseline, state: State, steps: list[Step],
    gone: list[tuple[PatchFile, str]],
) -> None:  # fmt: skip
    """Everything that will be written, in `rebase/new`, and what it replaces, in `rebase/old`."""
    place, target = directory(project), state.upstream
    new, old = Project(place / "new"), Project(place / "old")
    for made in (new, old):
        shutil.rmtree(made.root, ignore_errors=True)
        made.patches.mkdir(parents=True)
    names = [patch.name for patch, _proof in gone]
    steps = [replace(step, patch=_without_dependencies(step.patch, names)) for step in steps]
    for step in steps:
        (new.patches / step.patch.name).write_bytes(patchfile.render(step.patch))
    lines = project.series.read_text(encoding="utf-8").splitlines(keepends=True)
    new.series.write_text("".join(line for line in lines if line.strip() not in names), encoding="utf-8")
    patches = series.load(new.series, new.patches)
    again = chain.apply_series(store, target.tree, patches)
    if [step.after for step in again] != [step.after for step in steps]:
        raise ToolError("the new patches do not make the trees they were made from: report this", CONFLICT)
    catalogue.write(new.root / "PATCHES.md", patches)
    if gone:
        where = base.pin.package + " " + (target.commit or target.label)
        entries = [retired.entry(patch, where, proof) for patch, proof in gone]
        (new.root / "RETIRED.md").write_text(retired.appended(project.root / "RETIRED.md", entries), encoding="utf-8")
    shutil.copy(project.pin, new.pin)
    moved = _move_pin(store, console, base, replace(base.pin, path=new.pin), target)
    pin.write_products(moved, build.products(store, new, again))
    for path in _files(new.root) | {Path("patches", step.patch.name) for step in base.steps}:
        if (project.root / path).exists():
            shutil.copy(project.root / path, old.root / path)


def _move_pin(store: Store, console: Console, base: Baseline, copy: pin.Pin, target: Upstream) -> pin.Pin:
    if target.kind == "git":
        return pin.move(copy, copy.release, target.commit, (), target.commit, target.location, copy.revision + 1)
    wheels = upstreams.wheels(base.pin, store, console, target)
    release = wheel.release_of(target.file)
    tag = base.pin.tag.replace(base.pin.release, release) if base.pin.release in base.pin.tag else f"v{release}"
    return pin.move(copy, release, tag, wheels, None, base.pin.git, 1)


def _without_dependencies(patch: PatchFile, names: list[str]) -> PatchFile:
    """A patch whose header no longer depends on patches that are gone."""
    kept = [name for name in header.entries(patch, "Depends") if name not in names]
    if len(kept) == len(header.entries(patch, "Depends")):
        return patch
    text = re.sub(
        rb"^Depends:.*\n(?:[ \t]+\S.*\n)*", f"Depends: {', '.join(kept) or 'none'}\n".encode(), patch.header + b"\n",
        flags=re.MULTILINE,
    )  # fmt: skip
    return replace(patch, header=text.rstrip(b"\n"))


def _files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


def _finish(project: Project, console: Console, state: State) -> None:
    """Write what is prepared; may be repeated after a kill at any point."""
    _install(project, directory(project) / "new")
    shutil.rmtree(directory(project))
    moved = pin.load(project.pin)
    console.result(
        f"the series is on {state.target['label']}: {len(series.names(project.series))} patches, {moved.version}"
    )
    console.note("`apply.py` builds it; `apply.py --lint` shows headers that name what upstream no longer has")


def _install(project: Project, place: Path) -> None:
    """Make patches, series and the other files those of `rebase/new` or `rebase/old`; what only the other has goes."""
    files = _files(place)
    for path in sorted(files):
        scratch = project.root / path.parent / f".{path.name}.new"
        shutil.copy(place / path, scratch)
        scratch.replace(project.root / path)
    other = place.with_name({"new": "old", "old": "new"}[place.name])
    for path in _files(other) - files:
        (project.root / path).unlink(missing_ok=True)


def _warn(store: Store, console: Console, base: Baseline, state: State) -> None:
    """Say what the series relies on and upstream changed: no merge can judge that."""
    for symbol in check.judge_symbols(store, base, state.upstream):
        if symbol.verdict is not SymbolState.SAME and symbol.relation == "watches":
            cause = f" ({symbol.cause})" if symbol.cause else ""
            console.result(f"read {symbol.symbol}: {symbol.verdict}{cause}; watched by {', '.join(symbol.patches)}")
