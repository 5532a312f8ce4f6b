"""`apply.py --doctor`: does this interpreter run the patched package?

Owns the look from the outside: which copy an import finds, its content against the patched tree, bytecode that is not
of its source, leftovers of a patch run. Content decides; the version string is only reported.
"""

import importlib.metadata
import importlib.util
import marshal
import re
import sys
from pathlib import Path

from patchseries import build, chain, pin, series, upstream
from patchseries.build import Project
from patchseries.console import Console
from patchseries.errors import DRIFT, ToolError
from patchseries.listing import Listing, scan
from patchseries.store import Store
from patchseries.wheel import NATIVE


def doctor(project: Project, store: Store, console: Console) -> None:
    """Print what the interpreter imports and every problem; ToolError (code 1) if there is one."""
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    found = upstream.pinned(pinned, store, console)
    steps = chain.apply_series(store, found.tree, patches)
    build.verify(pinned, found, build.products(store, project, steps))
    package = locate(pinned.package)
    wanted = below(store.listing(steps[-1].after), f"python/{pinned.package}/")
    before = below(store.listing(found.tree), f"python/{pinned.package}/")
    have = scan(package, skip=lambda path: bool(NATIVE.search(path)) or path == ".pc")
    touched = sorted(path for path in wanted.keys() | before.keys() if wanted.get(path) != before.get(path))
    console.result(f"imports   {package}")
    console.result(f"version   {', '.join(versions(package, pinned.package))} (patched: {pinned.version})")
    for other in copies(pinned.package):
        if other != package:
            console.result(f"also at   {other} (shadowed)")
    problems = contents(have, wanted, before)
    problems += [
        f"leftover  {path}" for path in sorted(have.keys() - wanted.keys()) if re.search(r"\.(orig|rej)$", path)
    ]
    problems += [f"bytecode  {path}" for path in stale_bytecode(package, touched)]
    checked = f"{len(have)} files, {len(touched)} of them touched by {len(patches)} patches"
    if not have or not touched:
        raise ToolError(f"doctor checked nothing ({checked})")
    for problem in problems[:40]:
        console.result(problem)
    if problems:
        raise ToolError(f"doctor: {len(problems)} problems in {checked}: not the patched tree", DRIFT)
    console.result(f"doctor: the content is the patched tree ({checked})")


def locate(package: str) -> Path:
    """Directory of the package that this interpreter would import, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ToolError(f"{sys.executable} imports no {package}: set PYTHONPATH=build/python, or install it", DRIFT)
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def copies(package: str) -> list[Path]:
    """Every directory on the import path that has the package, in import order."""
    places = [Path(entry or ".", package) for entry in sys.path]
    return list(dict.fromkeys(place.resolve() for place in places if (place / "__init__.py").is_file()))


def versions(directory: Path, package: str) -> list[str]:
    """What the package says about its version: `_version.py`, and the metadata of an installed distribution."""
    found = []
    try:
        text = (directory / "_version.py").read_text(encoding="utf-8")
        found += [
            f"{m[1]} in _version.py" for m in [re.search(r"^__version__ = .*?'([^']+)'", text, re.MULTILINE)] if m
        ]
    except OSError:
        pass
    try:
        found.append(f"{importlib.metadata.version(package)} installed")
    except importlib.metadata.PackageNotFoundError:
        pass
    return found or ["unknown"]


def below(listing: Listing, prefix: str) -> Listing:
    """The part of a listing below a directory, by path relative to it."""
    return {path.removeprefix(prefix): entry for path, entry in listing.items() if path.startswith(prefix)}


def contents(have: Listing, wanted: Listing, before: Listing) -> list[str]:
    """Differences in content, one line a file; modes do not matter to an import."""
    lines = []
    for path in sorted(have.keys() | wanted.keys()):
        found, want, was = (listing[path].blob if path in listing else None for listing in (have, wanted, before))
        if found != want and not re.search(r"\.(orig|rej|pyc)$", path):
            state = (
                "missing" if found is None else "extra" if want is None else "unpatched" if found == was else "changed"
            )
            lines.append(f"{state:<9} {path}")
    return lines


def stale_bytecode(directory: Path, touched: list[str]) -> list[str]:
    """Bytecode that Python would run although it is not of the source beside it.

    Python compares time and size, or trusts a hash without looking; so the code of the touched files is compared. A
    .pyc outside `__pycache__` is imported in place of a source that is gone.
    """
    found = [str(p.relative_to(directory)) for p in directory.rglob("*.pyc") if p.parent.name != "__pycache__"]
    for path in touched:
        source = directory / path
        if source.suffix != ".py" or not source.is_file():
            continue
        cache = Path(importlib.util.cache_from_source(str(source)))
        if not cache.is_file():
            continue
        data = cache.read_bytes()
        if data[:4] != importlib.util.MAGIC_NUMBER or not _would_run(data, source):
            continue
        try:
            same = marshal.loads(data[16:]) == compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
        except (ValueError, EOFError, TypeError, SyntaxError):
            same = False
        if not same:
            found.append(str(cache.relative_to(directory)))
    return sorted(found)


def _would_run(data: bytes, source: Path) -> bool:
    flags = int.from_bytes(data[4:8], "little")
    if flags & 1:  # hash-based: checked against the source only if the second bit is set
        return not flags & 2 or data[8:16] == importlib.util.source_hash(source.read_bytes())
    status = source.stat()
    return (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")) == (
        int(status.st_mtime) & 0xFFFFFFFF,
        status.st_size & 0xFFFFFFFF,
    )
