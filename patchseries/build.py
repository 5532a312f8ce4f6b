"""`build/`: the patched tree, as a quilt working tree with every patch pushed.

Owns the directory. It is written beside its place and swapped in when it is complete and verified. The sentinel
`.patchseries.json` says that the tool made it and from what; a directory without one is never touched, and one that
holds work of a person is not replaced.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patchseries import chain, pin, programs, series, upstream, wheel
from patchseries.chain import Step
from patchseries.console import Console
from patchseries.errors import CONFLICT, DRIFT, ToolError
from patchseries.listing import EMPTY_BLOB, Listing, scan
from patchseries.pin import Pin, Products
from patchseries.store import Store
from patchseries.upstream import Upstream

SENTINEL = ".patchseries.json"
_RENAME_EXCHANGE = 2


@dataclass(frozen=True)
class Project:
    """A checkout of this repository: where its data lies."""

    root: Path

    @property
    def pin(self) -> Path:
        return self.root / "upstream.toml"

    @property
    def series(self) -> Path:
        return self.root / "series"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One writer at a time; a second one is told so."""
        handle = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ToolError(f"another apply.py is at work in {self.root}: wait for it") from None
        finally:
            os.close(handle)


@dataclass(frozen=True)
class Record:
    """What the sentinel says. trees: the pristine tree, then the tree after each patch; patches: name -> sha256;
    natives: path -> sha256 of the native modules laid in; version: of the patched package."""

    version: str
    source: dict[str, str | None]
    series: str
    trees: list[str]
    patches: dict[str, str]
    natives: dict[str, str] = field(default_factory=dict)


def read_record(build: Path) -> Record | None:
    """The sentinel of a build directory; None if there is no directory. ToolError if somebody else made it."""
    if not build.exists() and not build.is_symlink():
        return None
    try:
        return Record(**json.loads((build / SENTINEL).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise ToolError(
            f"{build} was not made by this tool (no {SENTINEL} in it): move it away and run again"
        ) from None


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(build: Path, record: Record) -> Listing:
    """What is in a build directory, without what is no source: quilt's state, the sentinel, native modules."""
    own = {".pc", SENTINEL, *record.natives}
    return scan(build, skip=lambda path: path in own)


def applied(build: Path) -> list[str]:
    """Patches that quilt has pushed in a build directory, in order."""
    try:
        return (build / ".pc" / "applied-patches").read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []


def differences(store: Store, found: Listing, tree: str, popped: frozenset[str] = frozenset()) -> list[str]:
    """How a listing differs from a tree, one line a file. `popped`: paths where quilt may have removed an empty file,
    because its backups cannot tell an empty file from none."""
    wanted = store.listing(tree)
    lines = []
    for path in sorted(found.keys() | wanted.keys()):
        have, want = found.get(path), wanted.get(path)
        if have == want or (have is None and want.blob == EMPTY_BLOB and path in popped):
            continue
        if want is None:
            lines.append(f"extra    {path}")
        elif have is None:
            lines.append(f"missing  {path}")
        else:
            lines.append(f"{'mode    ' if have.blob == want.blob else 'changed '} {path}")
    return lines


def unsaved(store: Store, build: Path, record: Record, trees: list[str]) -> list[str]:
    """What replacing the build would lose: the files that are in none of the states that patches can produce.

    `trees` are the states of the present series. Empty if nothing would be lost.
    """
    found = contents(build, record)
    popped = touched(store, record)
    pushed = len([name for name in applied(build) if name in record.patches])
    current = differences(store, found, record.trees[min(pushed, len(record.trees) - 1)], popped)
    if current and any(not differences(store, found, tree, popped) for tree in {*record.trees, *trees}):
        return []
    return current


def touched(store: Store, record: Record) -> frozenset[str]:
    """Paths that differ between any two states of a build."""
    first = store.listing(record.trees[0])
    later = [store.listing(tree) for tree in record.trees[1:]]
    return frozenset(path for tree in later for path in first.keys() | tree.keys() if first.get(path) != tree.get(path))


def products(store: Store, project: Project, steps: list[Step]) -> Products:
    """What a series produced, in the form of the pin."""
    patches = [step.patch for step in steps]
    before, after = steps[0].before, steps[-1].after
    return Products(
        series=series.digest(project.series, project.patches),
        pristine_tree=before,
        patched_tree=after,
        touched_before=series.touched_digest(store.listing(before), patches),
        touched_after=series.touched_digest(store.listing(after), patches),
    )


def verify(pinned: Pin, source: Upstream, made: Products) -> None:
    """ToolError (code 1) unless the series produced what `upstream.toml` says."""
    if pinned.products is None:
        raise ToolError(
            "upstream.toml has no [products] yet: check the series, then run `apply.py --update-pin`", DRIFT
        )
    compared = ["series", "touched_before", "touched_after"]
    if source.kind == "wheel":
        compared = ["pristine_tree", *compared, "patched_tree"]
    for name in compared:
        actual, expected = getattr(made, name), getattr(pinned.products, name)
        if actual != expected:
            what = {
                "series": "the patches are not the pinned ones: after an intended change run `apply.py --update-pin`",
                "pristine_tree": f"{source.label} is not the pinned upstream: use `apply.py --check` or `--rebase`",
                "touched_before": f"{source.label} has other versions of the files that the series touches: "
                "use `apply.py --check` or `--rebase`",
            }.get(name, "the patched tree is not the pinned one: after an intended change run `apply.py --update-pin`")
            raise ToolError(f"{what} ({name} is {actual[:12]}, pinned {expected[:12]})", DRIFT)


def make(
    project: Project,
    store: Store,
    console: Console,
    source: str | None = None,
    ref: str | None = None,
    force: bool = False,
) -> None:
    """Pristine upstream -> series -> verified tree in `build/`. Does nothing if `build/` is that tree already.

    ToolError leaves `build/` as it was: code 1 if the result is not the pinned one or `build/` has unsaved work,
    2 if a patch does not apply. `force` replaces unsaved work.
    """
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    found = upstream.resolve(pinned, store, console, source, ref)
    with project.lock():
        _recover(project)
        record = read_record(project.build)
        with console.step(f"Applying {len(patches)} patches"):
            steps = chain.apply_series(store, found.tree, patches)
        verify(pinned, found, products(store, project, steps))
        for step in steps:
            for path, number, lines in step.offsets:
                console.note(
                    f"{step.patch.name}: {path}, hunk {number} landed {lines:+d} lines off: `apply.py --refresh`"
                )
        natives = _natives(pinned, store, console)
        wanted = Record(
            version=pinned.version,
            source={"kind": found.kind, "label": found.label, "commit": found.commit},
            series=series.digest(project.series, project.patches),
            trees=[found.tree, *(step.after for step in steps)],
            patches={p.name: file_digest(project.patches / p.name) for p in patches},
            natives={path: hashlib.sha256(content).hexdigest() for path, content in natives.items()},
        )
        summary = f"{len(patches)} patches on {found.describe()}"
        if record is not None:
            if record == wanted and applied(project.build) == list(record.patches):
                if not differences(store, contents(project.build, record), record.trees[-1]):
                    console.result(
                        f"build/ is up to date: {pinned.version}, {summary}, patched tree {steps[-1].after[:12]}"
                    )
                    return
            if not force and (lost := unsaved(store, project.build, record, wanted.trees)):
                raise ToolError(
                    f"build/ has {len(lost)} files that no patch has: bring them into the patches with "
                    "`apply.py --refresh`, or drop them with `apply.py --force`",
                    DRIFT,
                    lost[:20],
                )
        with console.step("Writing build/"):
            _write(project, store, wanted, natives)
        console.result(f"build/ is {pinned.version}: {summary}, patched tree {steps[-1].after[:12]}")


def _natives(pinned: Pin, store: Store, console: Console) -> dict[str, bytes]:
    """Native modules for the running interpreter, from its pinned wheel; none where no wheel fits."""
    fitting = wheel.matching(pinned)
    if fitting is None:
        console.note(f"no pinned wheel fits {wheel.python_tag()} on this machine: build/ gets no native modules")
        return {}
    return dict(wheel.natives(wheel.fetch(pinned, fitting, store.cache), pinned.package))


def _write(project: Project, store: Store, record: Record, natives: dict[str, bytes]) -> None:
    scratch = project.root / ".build.new"
    try:
        if scratch.exists():
            shutil.rmtree(scratch)
        scratch.mkdir()
        (scratch / SENTINEL).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        store.export(record.trees[0], scratch)
        push(scratch)
        if wrong := differences(store, contents(scratch, record), record.trees[-1]):
            raise ToolError("quilt made another tree than the series: report this", CONFLICT, wrong[:20])
        for path, content in natives.items():
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / path).write_bytes(content)
            (scratch / path).chmod(0o755)
        _swap(scratch, project.build)
    except OSError as error:
        raise ToolError(f"{project.root} cannot be written ({error.strerror}): build/ is as it was") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def push(directory: Path) -> None:
    """`quilt push -a --fuzz=0` in a working tree beside `patches/` and `series`."""
    done = programs.run(["quilt", "--quiltrc", "-", "push", "-a", "--fuzz=0"], directory, **programs.QUILT_ENVIRONMENT)
    if done.returncode:
        raise ToolError("quilt push failed", CONFLICT, done.stdout.decode(errors="replace").strip().splitlines()[-5:])


def _swap(new: Path, place: Path) -> None:
    """Put `new` in `place` in one step; what was there is at `new` afterwards."""
    if not place.exists():
        new.rename(place)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange and exchange(-100, os.fsencode(new), -100, os.fsencode(place), _RENAME_EXCHANGE) == 0:
        return
    old = place.with_name(".build.old")  # no exchange on this file system: two renames, and `_recover`
    place.rename(old)
    new.rename(place)
    shutil.rmtree(old)


def _recover(project: Project) -> None:
    """Finish what a run killed between two renames left."""
    old = project.root / ".build.old"
    if old.exists():
        if project.build.exists():
            shutil.rmtree(old)
        else:
            old.rename(project.build)


def clean(project: Project, _store: Store, console: Console) -> None:
    """Remove `build/` if the tool made it."""
    with project.lock():
        for path in (project.build, project.root / ".build.new", project.root / ".build.old"):
            if path.exists():
                read_record(path)
                shutil.rmtree(path)
                console.result(f"removed {path.name}/")


def update_pin(project: Project, store: Store, console: Console) -> None:
    """Rewrite `[products]` in upstream.toml to what the present series produces on the pinned wheels.

    Every pinned wheel that the cache has is compared; ToolError if their contents differ.
    """
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    found, compared = upstream.compare_wheels(pinned, store, console)
    with console.step(f"Applying {len(patches)} patches"):
        steps = chain.apply_series(store, found.tree, patches)
    made = products(store, project, steps)
    wheels = f"{len(patches)} patches on {found.describe()}, {compared} of {len(pinned.wheels)} wheels compared"
    if pin.write_products(pinned, made):
        console.result(f"upstream.toml: [products] is now that of {wheels}; patched tree {made.patched_tree[:12]}")
    else:
        console.result(f"upstream.toml is up to date: {wheels}")
