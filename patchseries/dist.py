"""The patched package as a wheel.

Owns `dist/`. The release wheel is rewritten: changed files, version and RECORD; native modules and everything else
stay. The same wheel and series give the same bytes.
"""

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

from patchseries import delivery, overlay, pin, wheel
from patchseries.build import Project
from patchseries.console import Console
from patchseries.delivery import Delivery
from patchseries.errors import CONFLICT, ToolError
from patchseries.listing import EXECUTABLE, NATIVE, blob_id
from patchseries.manifest import Manifest
from patchseries.pin import Pin, Wheel
from patchseries.store import Store


def write_wheels(project: Project, store: Store, console: Console, parts: list[str]) -> None:
    """Write `dist/*.whl` for the pinned wheels that `parts` mean (see `choose`)."""
    chosen = choose(pin.load(project.pin), parts)
    made = delivery.make(project, store, console)
    for each in chosen:
        source = wheel.fetch(made.pin, each, store.cache)
        place = project.root / "dist" / each.file.replace(f"-{made.pin.release}-", f"-{made.manifest.version}-", 1)
        with console.step(f"Writing {place.name}"):
            _place(place, rewritten(source, made))
        console.result(f"dist/{place.name}, sha256 {wheel.sha256(place)}")


def write_overlay(project: Project, store: Store, console: Console) -> None:
    """Write `dist/*.pyz`, the overlay file."""
    made = delivery.make(project, store, console)
    place = project.root / "dist" / f"{made.pin.package}-{made.manifest.version}.pyz"
    _place(place, overlay.pack(made.manifest, made.changed))
    console.result(f"dist/{place.name}, sha256 {wheel.sha256(place)}")


def choose(pinned: Pin, parts: list[str]) -> list[Wheel]:
    """The pinned wheels whose file names have one of `parts`, or `all`; without any, the one for the running
    interpreter. ToolError if a part means none."""
    fitting = wheel.matching(pinned)
    chosen = [fitting] if fitting and not parts else []
    for part in parts:
        found = [each for each in pinned.wheels if part == "all" or part in each.file]
        if not found:
            raise _no_wheel(pinned, part)
        chosen += [each for each in found if each not in chosen]
    if not chosen:
        raise _no_wheel(pinned, "this interpreter and machine")
    return chosen


def _no_wheel(pinned: Pin, wanted: str) -> ToolError:
    names = ", ".join(f"{each.python}-{each.platform}" for each in pinned.wheels) or "none: a commit is pinned"
    return ToolError(f"no pinned wheel is for {wanted}: there are {names}")


def rewritten(source: Path, made: Delivery) -> bytes:
    """A release wheel with the series in it."""
    manifest, package = made.manifest, made.manifest.package
    old, new = (f"{package}-{version}.dist-info/" for version in (manifest.release, manifest.version))
    contents = {**made.changed, **manifest.added_files()}
    replaced = {f"{package}/{path}": content for path, content in contents.items()}
    removed = {f"{package}/{path}" for path in manifest.touched if path not in manifest.after}
    members: list[tuple[zipfile.ZipInfo, bytes]] = []
    with zipfile.ZipFile(source) as archive:
        infos = archive.infolist()
        for info in infos:
            if info.filename in removed or info.filename == f"{old}RECORD":
                continue
            content = replaced.pop(info.filename, None)
            content = archive.read(info) if content is None else content
            if info.filename == f"{old}METADATA":
                content = _with_version(content, manifest)
            members.append((_info(info.filename.replace(old, new, 1), info, info.external_attr), content))
    like = next(info for info in infos if info.filename == f"{old}RECORD")
    for name, content in sorted(replaced.items()):
        entry = manifest.after.get(name.removeprefix(f"{package}/"))
        mode = 0o755 if entry and entry.mode == EXECUTABLE else 0o644
        members.append((_info(name, like, mode << 16), content))
    members.append((_info(f"{new}RECORD", like, like.external_attr), _record(members, f"{new}RECORD")))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for info, content in members:
            archive.writestr(info, content)
    _verify(members, manifest)
    return packed.getvalue()


def _info(name: str, like: zipfile.ZipInfo, attributes: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, like.date_time)
    info.external_attr = attributes
    info.create_system = 3  # Unix: the upper half of external_attr is a mode
    info.compress_type = zipfile.ZIP_STORED if name.endswith("/") else zipfile.ZIP_DEFLATED
    return info


def _with_version(metadata: bytes, manifest: Manifest) -> bytes:
    old, new = (f"\nVersion: {version}\n".encode() for version in (manifest.release, manifest.version))
    head, separator, body = metadata.partition(b"\n\n")
    if (b"\n" + head + b"\n").count(old) != 1:
        raise ToolError(f"the release wheel does not call itself {manifest.release} in its METADATA: check the pin")
    return (b"\n" + head + b"\n").replace(old, new)[1:-1] + separator + body


def _record(members: list[tuple[zipfile.ZipInfo, bytes]], own: str) -> bytes:
    """RECORD: sha256 and size of every file but itself, as wheels have it."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    for info, content in members:
        if not info.is_dir():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            table.writerow([info.filename, f"sha256={digest}", len(content)])
    table.writerow([own, "", ""])
    return lines.getvalue().encode()


def _verify(members: list[tuple[zipfile.ZipInfo, bytes]], manifest: Manifest) -> None:
    """ToolError unless the sources in the wheel are the patched tree and what a delivery adds to it."""
    prefix = f"{manifest.package}/"
    wanted = {path: entry.blob for path, entry in manifest.after.items()}
    wanted |= {path: blob_id(content) for path, content in manifest.added_files().items()}
    found = {
        info.filename.removeprefix(prefix): blob_id(content)
        for info, content in members
        if info.filename.startswith(prefix) and not info.is_dir() and not NATIVE.search(info.filename)
    }
    if wrong := sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path)):
        raise ToolError("the wheel would not have the patched tree: report this", CONFLICT, wrong[:20])


def _place(path: Path, content: bytes) -> None:
    """A file of `dist/`, complete or not at all."""
    try:
        path.parent.mkdir(exist_ok=True)
        scratch = path.with_name(f".{path.name}.new")
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:
        raise ToolError(f"{path} cannot be written ({error.strerror})") from None
