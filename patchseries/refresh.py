"""`apply.py --refresh`: what was edited, brought into the patches in canonical form.

Owns the way back from `build/` to `patches/`. quilt's own refresh writes the text of an edit but knows no mode, no
empty file and no rename, so the patches are made from git trees: the state after each pushed patch is read from
quilt's backups (`.pc/`), and the patches that are not pushed are applied on top of it.
"""

from pathlib import Path

from patchseries import build, catalogue, chain, export, patchfile, pin, series, upstream
from patchseries.build import Project, Record
from patchseries.chain import Step
from patchseries.console import Console
from patchseries.errors import DRIFT, ToolError
from patchseries.listing import EMPTY_BLOB, Entry, read_entry
from patchseries.patchfile import PatchFile
from patchseries.store import Store


def refresh(project: Project, store: Store, console: Console) -> None:
    """Rewrite patches and PATCHES.md canonically, from edits in `build/` if there are any, else from the patches.

    ToolError, nothing written: code 1 if `build/` has changes outside its patches, or if it and a patch file were both
    changed and disagree; 2 if a patch that is not pushed does not apply.
    """
    pinned = pin.load(project.pin)
    names = series.names(project.series)
    found = upstream.pinned(pinned, store, console)
    with project.lock():
        record = build.read_record(project.build)
        edited = _edited(project, store, record, names) if record else []
        if edited and record.trees[0] != found.tree:
            raise ToolError(
                "build/ has edits on another upstream than the pin: save them as a patch, then --force", DRIFT
            )
        if not edited:
            series.load(project.series, project.patches)
        steps: list[Step] = []
        for name, tree in edited:
            before = steps[-1].after if steps else found.tree
            steps.append(Step(PatchFile(name, _header(project, name)), before, tree))
        for name in names[len(edited) :]:
            before = steps[-1].after if steps else found.tree
            steps.append(chain.apply_patch(store, before, patchfile.read(project.patches / name)))
        patches = canonical(store, steps)
        texts = {project.patches / patch.name: patchfile.render(patch) for patch in patches}
        changed = [path for path, text in texts.items() if not path.exists() or path.read_bytes() != text]
        for path in changed:
            scratch = path.with_name(f".{path.name}.new")
            scratch.write_bytes(texts[path])
            scratch.replace(path)
        catalogued = catalogue.write(project.root / "PATCHES.md", patches)
    source = "build/" if edited else "the patches"
    hunks, files = sum(patch.hunk_count for patch in patches), sum(len(patch.files) for patch in patches)
    console.result(
        f"refreshed {len(patches)} patches, {hunks} hunks, {files} files from {source}: "
        f"{', '.join(path.name for path in changed) or 'no patch'} rewritten{', PATCHES.md too' if catalogued else ''}"
    )
    if changed:
        console.note("the pin is as it was: `apply.py --update-pin` accepts the result")


def canonical(store: Store, steps: list[Step]) -> list[PatchFile]:
    """The patches of a chain, made anew from its trees."""
    for step in steps:
        if step.before == step.after:
            raise ToolError(f"{step.patch.name} changes nothing: take it out of the series (quilt delete)", DRIFT)
    return [export.patch_from_trees(store, s.patch.name, s.patch.header, s.before, s.after) for s in steps]


def _edited(project: Project, store: Store, record: Record, names: list[str]) -> list[tuple[str, str]]:
    """(patch, tree after it) for each pushed patch, if `build/` was edited since it was made; else empty."""
    pushed = build.applied(project.build)
    states = _pushed_states(project.build, store, record, pushed)
    top = states[-1][1] if states else record.trees[0]
    touched = build.touched(store, record)
    if stray := build.differences(store, build.contents(project.build, record), top, touched):
        raise ToolError(
            f"build/ has {len(stray)} files changed outside its patches: `quilt add` before an edit, or undo it",
            DRIFT,
            stray[:20],
        )
    recorded = list(zip(record.patches, record.trees[1:], strict=True))
    if states == recorded[: len(states)]:
        return []
    if pushed != names[: len(pushed)]:
        raise ToolError(
            f"the patches pushed in build/ ({' '.join(pushed)}) are not the first of {project.series}", DRIFT
        )
    before = record.trees[0]
    for name, tree in states:
        path = project.patches / name
        if path.exists() and build.file_digest(path) != record.patches.get(name):
            if not _agrees(store, before, path, tree):
                raise ToolError(
                    f"patches/{name} and build/ were both changed and disagree: `quilt refresh {name}` in build/ "
                    "takes what build/ has, `apply.py --force` what the patch has",
                    DRIFT,
                )
        before = tree
    return states


def _pushed_states(directory: Path, store: Store, record: Record, pushed: list[str]) -> list[tuple[str, str]]:
    """(patch, tree after it) from the working tree and quilt's backups, each of which is the file before a patch."""
    states: list[tuple[str, str]] = []
    tree = record.trees[0]
    recorded = dict(zip(record.patches, record.trees[1:], strict=True))
    for index, name in enumerate(pushed):
        after: dict[str, Path | None] = {}
        for path in _backups(directory, name):
            later = (directory / ".pc" / other / path for other in pushed[index + 1 :])
            after[path] = next((backup for backup in later if backup.exists()), directory / path)
        present = {path: file for path, file in after.items() if file.is_file() or file.is_symlink()}
        for path, file in list(present.items()):
            empty_backup = file != directory / path and file.stat().st_size == 0
            was = store.listing(recorded[name]).get(path) if name in recorded else None
            if empty_backup and (was is None or was.blob != EMPTY_BLOB):
                del present[path]
        entries = {path: read_entry(file) for path, file in present.items()}
        store.write_blobs([file for file in present.values() if not file.is_symlink()])
        changes: dict[str, Entry | None] = {path: entries.get(path) for path in after}
        listing = store.listing(tree)
        tree = store.write_tree(tree, {path: e for path, e in changes.items() if e != listing.get(path)})
        states.append((name, tree))
    return states


def _backups(directory: Path, name: str) -> list[str]:
    """Paths that a pushed patch has in quilt's hands."""
    top = directory / ".pc" / name
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file() and path.name != ".timestamp")


def _header(project: Project, name: str) -> bytes:
    path = project.patches / name
    return patchfile.read(path).header if path.exists() else b""


def _agrees(store: Store, before: str, path: Path, after: str) -> bool:
    """Whether a patch file makes of `before` what `after` is, but for what `quilt refresh` cannot write down: modes,
    and files that are empty or gone."""
    patch = patchfile.read(path)
    try:
        made = store.listing(chain.apply_patch(store, before, patch).after if patch.files else before)
    except ToolError:
        return False
    wanted = store.listing(after)
    blobs = [
        [listing[path].blob if path in listing else EMPTY_BLOB for listing in (made, wanted)]
        for path in made.keys() | wanted.keys()
    ]
    return all(one == other for one, other in blobs)
