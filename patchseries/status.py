"""`apply.py --status`: where the checkout stands. Looks, and neither fetches nor writes."""

from patchseries import build, pin, rebase, series, upstream
from patchseries.build import Project
from patchseries.console import Console
from patchseries.errors import DRIFT, ToolError
from patchseries.store import Store


def status(project: Project, store: Store, console: Console) -> None:
    """Print the pin, the series and the state of `build/`; ToolError (code 1) if they are not of one another."""
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    digest = series.digest(project.series, project.patches)
    accepted = pinned.products is not None and pinned.products.series == digest
    cached = upstream.cached_wheels(pinned, store)
    hunks, files = sum(p.hunk_count for p in patches), sum(len(p.files) for p in patches)
    console.result(f"pin      {pinned.package} {pinned.release}, patched version {pinned.version}")
    console.result(f"wheels   {len(cached)} of {len(pinned.wheels)} in {store.cache}")
    console.result(f"series   {len(patches)} patches, {hunks} hunks, {files} files, sha256 {digest[:12]}")
    state, problem = _build_state(project, store, digest)
    console.result(f"build/   {state}")
    if moving := rebase.read_state(project):
        done = f"{len(moving.done)} of {len(patches)} patches are through"
        console.result(f"rebase   onto {moving.target['label']} is under way, {done}: --continue or --abort")
    if not accepted:
        raise ToolError("the series is not the pinned one: after an intended change run `apply.py --update-pin`", DRIFT)
    if problem:
        raise ToolError(problem, DRIFT)


def _build_state(project: Project, store: Store, digest: str) -> tuple[str, str | None]:
    record = build.read_record(project.build)
    if record is None:
        return "none", "there is no build/: run `apply.py`"
    pushed = build.applied(project.build)
    made = f"{record.version} from {record.source['label']}, {len(pushed)} of {len(record.patches)} patches pushed"
    if lost := build.unsaved(store, project.build, record, []):
        return f"{made}; {len(lost)} files that no patch has", "build/ has unsaved edits: `apply.py --refresh`"
    if record.series != digest:
        return f"{made}; of another series", "build/ is of another series: run `apply.py`"
    if pushed != list(record.patches):
        return made, "build/ has not all patches pushed: `quilt push -a` there, or `apply.py`"
    return f"{made}, patched tree {record.trees[-1][:12]}", None
