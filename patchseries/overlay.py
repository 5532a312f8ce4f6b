"""An overlay: the changed files, laid over the package that an interpreter imports.

Owns the overlay file (`*.pyz`: this code, a manifest and the changed files; any Python 3.11 runs it, nothing else is
needed) and what it does. `python3 FILE.pyz` patches the package in place, in an image or a virtual environment that
can be made anew; `--doctor` only looks. Everything is compared before the first byte is written.

Exit status: 0 done, or in order; 1 the package is not the pinned one; 3 wrong usage, or not writable.
"""

import argparse
import io
import os
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from patchseries import installation
from patchseries.errors import DRIFT, OK, USAGE, ToolError
from patchseries.listing import EXECUTABLE, Listing
from patchseries.manifest import RECORD, Manifest, parse_record

_MODULES = ("__init__", "errors", "listing", "manifest", "installation", "overlay")
_MAIN = b"import sys\nfrom patchseries import overlay\nsys.exit(overlay.main(sys.argv))\n"
_MANIFEST = "manifest.json"
_FILES = "files/"


def pack(manifest: Manifest, changed: dict[str, bytes]) -> bytes:
    """The overlay file. `changed`: content of every touched file that the patched package has. The same input gives
    the same bytes."""
    members = {"__main__.py": _MAIN, _MANIFEST: manifest.to_json()}
    for name in _MODULES:
        members[f"patchseries/{name}.py"] = Path(__file__).with_name(f"{name}.py").read_bytes()
    for path, content in sorted(changed.items()):
        members[_FILES + path] = content
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return packed.getvalue()


def unpack(file: Path) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the changed files of an overlay file."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.startswith(_FILES)]
        changed = {name.removeprefix(_FILES): archive.read(name) for name in names}
        return Manifest.from_json(archive.read(_MANIFEST)), changed


def lay(manifest: Manifest, changed: dict[str, bytes], package: Path, accept: bool = False) -> dict[str, str | None]:
    """Patch the package in place; returns the files in which it differed from the pinned one: path -> blob id.

    ToolError (code 1) if it is not the pinned package. `accept` allows differences in files that the series does not
    touch; a touched file that is another one is never overwritten.
    """
    have = installation.contents(package)
    refuse_patched(manifest, package, have)
    differs = installation.differences(have, manifest.before, {})
    differs |= {path: "exists" for path in manifest.touched if path in have and path not in manifest.before}
    touched = [path for path in manifest.touched if path in differs]
    if touched:
        raise ToolError(
            f"{package} has other versions of {len(touched)} files that the series changes: it fits "
            f"{manifest.package} {manifest.release} only; `apply.py --check` says what becomes of it elsewhere",
            DRIFT,
            _lines(differs, touched),
        )
    if differs and not accept:
        raise ToolError(
            f"{package} is not the pinned {manifest.package} {manifest.release}: {len(differs)} files differ that the "
            "series does not touch; take the release itself, or accept that on record with --accept-base",
            DRIFT,
            _lines(differs, differs),
        )
    accepted = {path: installation.blob(have, path) for path in differs}
    removed = [path for path in manifest.touched if path not in manifest.after]
    try:
        _write(manifest, package, {**changed, **manifest.added_files(accepted)}, removed)
    except OSError as error:
        raise ToolError(
            f"{error.filename} cannot be written ({error.strerror}): run as the user that owns {package}"
        ) from None
    return accepted


def refuse_patched(manifest: Manifest, package: Path, have: Listing) -> None:
    """ToolError (code 1) if a series is in the package already."""
    if RECORD in have:
        record = parse_record((package / RECORD).read_bytes())
        version = record["version"] if record else f"something else with a {RECORD}"
        raise ToolError(
            f"{package} is {version} already: start from the unpatched {manifest.package} {manifest.release}", DRIFT
        )


def _lines(differs: dict[str, str], paths: Iterable[str]) -> list[str]:
    return [f"{differs[path]:<9} {path}" for path in paths][:20]


def _write(manifest: Manifest, package: Path, written: dict[str, bytes], removed: list[str]) -> None:
    """Every file beside its place first, then all into their places; then bytecode of what changed goes."""
    pending: list[tuple[Path, Path]] = []
    try:
        for path, content in written.items():
            place = package / path
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f".{place.name}.new")
            pending.append((new, place))
            new.write_bytes(content)
            entry = manifest.after.get(path)
            new.chmod(0o755 if entry and entry.mode == EXECUTABLE else 0o644)
            os.utime(new, (manifest.time, manifest.time))
        for new, place in pending:
            new.replace(place)
    finally:
        for new, _place in pending:
            new.unlink(missing_ok=True)
    for path in removed:
        (package / path).unlink()
    places = [package / path for path in [*written, *removed]]
    for place in places:
        for stale in installation.bytecode(place):
            stale.unlink()
    for directory in {place.parent for place in places}:
        for changed in (directory / "__pycache__", directory):
            if changed.is_dir():
                os.utime(changed, (manifest.time, manifest.time))


def main(argv: list[str]) -> int:
    """`argv`: the overlay file and its options."""
    parser = argparse.ArgumentParser(
        prog=Path(argv[0]).name,
        description="Patch the package that this interpreter imports, and check the result.",
        epilog=__doc__[__doc__.index("Exit status") :],
    )
    parser.add_argument("--doctor", action="store_true", help="only look: is it the patched package?")
    parser.add_argument("--accept-base", action="store_true", help="allow other versions of files nobody patches")
    try:
        options = parser.parse_args(argv[1:])
    except SystemExit as stop:
        return USAGE if stop.code else OK
    sys.path[0] = os.getcwd()  # as for `python3 -m`, so that the copy found is the one that a server would run
    try:
        manifest, changed = unpack(Path(argv[0]))
        package = installation.locate(manifest.package)
        if not options.doctor:
            accepted = lay(manifest, changed, package, options.accept_base)
            differs = f", {len(accepted)} differences of the base accepted" if accepted else ""
            print(f"overlay: {len(manifest.touched)} files of {manifest.version} over {package}{differs}")
        installation.report(installation.examine(manifest, package), print)
    except ToolError as error:
        print(f"{parser.prog}: {error.message}", *(f"  {line}" for line in error.details), sep="\n", file=sys.stderr)
        return error.code
    return OK
