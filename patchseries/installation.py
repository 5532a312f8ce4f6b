"""An installed package, seen from outside: which copy an import finds, and what is in it.

Owns the look: content against a manifest, bytecode that is not of its source, leftovers, native modules. Content
decides; version strings are only reported. Nothing is imported, so it needs neither torch nor a GPU; and it needs the
standard library alone, so it also runs inside an image.
"""

import importlib.metadata
import importlib.util
import json
import marshal
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from patchseries import manifest
from patchseries.errors import DRIFT, ToolError
from patchseries.listing import NATIVE, Listing, blob_id, scan
from patchseries.manifest import RECORD, VERSION, Manifest

_LEFTOVER = re.compile(r"\.(orig|rej)$")
_SHOWN = 40


@dataclass
class Findings:
    """What a look found, as lines for people. `problems` mean that it is not the patched package; `notes` do not."""

    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    checked: str = ""


def locate(package: str) -> Path:
    """Directory of the package that this interpreter would import, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ToolError(f"{sys.executable} imports no {package}: set PYTHONPATH=build/python, or install it", DRIFT)
    return Path(spec.origin).resolve().parent


def examine(wanted: Manifest, package: Path) -> Findings:
    """Compare a package with the patched one. ToolError if there was nothing to compare."""
    have = contents(package)
    found = Findings(checked=f"{len(have)} files, {len(wanted.touched)} of them touched by the series")
    if not have or not wanted.touched:
        raise ToolError(f"doctor checked nothing ({found.checked})")
    found.facts.append(f"imports   {package}")
    found.facts.append(f"version   {', '.join(versions(package, wanted.package))} (patched: {wanted.version})")
    found.facts += [f"also at   {other} (shadowed)" for other in copies(wanted.package) if other != package]
    record, found.problems = read_record(wanted, package, have)
    accepted, older = record.get("base_differs", {}), record.get("files", {})
    for path, state in differences(have, wanted.after, wanted.before).items():
        agreed = path not in wanted.touched and path in accepted and accepted[path] == blob(have, path)
        (found.notes if agreed else found.problems).append(f"{'accepted' if agreed else state:<9} {path}")
    extra = have.keys() - wanted.after.keys() - wanted.before.keys() - {RECORD}
    leftovers = {path for path in extra if _LEFTOVER.search(path) or path in older}
    found.problems += [f"leftover  {path}" for path in sorted(leftovers)]
    found.problems += [f"bytecode  {path}" for path in stale_bytecode(package, wanted.touched)]
    if foreign := sorted(path for path in extra - leftovers if not path.endswith(".pyc")):
        found.notes.append(f"foreign   {len(foreign)} files that the release does not have, such as {foreign[0]}")
    if natives := sorted(path.name.split(".")[0] for path in package.rglob("*") if NATIVE.search(path.name)):
        found.notes.append(f"native    {len(natives)} compiled modules, out of a patch's reach: {', '.join(natives)}")
    return found


def report(found: Findings, show: Callable[[str], None]) -> None:
    """Show the findings line by line; ToolError (code 1) if there is a problem."""
    for line in [*found.facts, *found.notes, *found.problems[:_SHOWN]]:
        show(line)
    if len(found.problems) > _SHOWN:
        show(f"... and {len(found.problems) - _SHOWN} more")
    if found.problems:
        raise ToolError(f"doctor: {len(found.problems)} problems in {found.checked}: not the patched tree", DRIFT)
    show(f"doctor: the content is the patched tree ({found.checked})")


def contents(package: Path) -> Listing:
    """The source files of a package, by path below it."""
    return scan(package, skip=lambda path: bool(NATIVE.search(path)))


def read_record(wanted: Manifest, package: Path, have: Listing) -> tuple[dict, list[str]]:
    """What a delivered package says of itself, empty if it says nothing; and what is wrong with that."""
    if RECORD not in have:
        return {}, []
    record = manifest.parse_record((package / RECORD).read_bytes())
    if record is None:
        return {}, [f"record    {RECORD} cannot be read"]
    if record["series"].get("sha256") != wanted.series:
        return record, [f"record    {RECORD} is of another series, {record['version']}"]
    if blob(have, VERSION) != blob_id(wanted.version_file()):
        return record, [f"record    {VERSION} does not say {wanted.version}"]
    return record, []


def copies(package: str) -> list[Path]:
    """Every directory on the import path that has the package, in import order."""
    places = [Path(entry or ".", package) for entry in sys.path]
    return list(dict.fromkeys(place.resolve() for place in places if (place / "__init__.py").is_file()))


def versions(directory: Path, package: str) -> list[str]:
    """What the package says about its version: `_version.py`, and the metadata of an installed distribution."""
    found = []
    try:
        text = (directory / VERSION).read_text(encoding="utf-8")
        match = re.search(r"""^__version__ = .*?['"]([^'"]+)""", text, re.MULTILINE)
        found += [f"{match[1]} in {VERSION}"] if match else []
    except OSError:
        pass
    try:
        distribution = importlib.metadata.distribution(package)
        direct = json.loads(distribution.read_text("direct_url.json") or "{}")
        editable = direct.get("dir_info", {}).get("editable", False)
        found.append(f"{distribution.version} installed{' in editable form' if editable else ''}")
    except importlib.metadata.PackageNotFoundError:
        pass
    return found or ["unknown"]


def blob(listing: Listing, path: str) -> str | None:
    return listing[path].blob if path in listing else None


def differences(have: Listing, wanted: Listing, before: Listing) -> dict[str, str]:
    """Files of `wanted` that are missing or other, and files of `before` that should be gone: path -> what is wrong.

    Modes do not matter to an import, and `_version.py` is each build's own.
    """
    found = {}
    for path in sorted(wanted.keys() | (before.keys() & have.keys())):
        there = blob(have, path)
        if there != blob(wanted, path) and path != VERSION:
            found[path] = "missing" if there is None else "unpatched" if there == blob(before, path) else "changed"
    return found


def bytecode(source: Path) -> list[Path]:
    """Bytecode that some interpreter may run for a source file."""
    caches = source.parent / "__pycache__"
    stem = re.escape(source.stem)
    found = [path for path in caches.glob("*.pyc") if re.fullmatch(rf"{stem}\.[\w-]+(\.opt-\w+)?\.pyc", path.name)]
    return sorted(found + [path for path in [source.with_suffix(".pyc")] if path.exists()])


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
