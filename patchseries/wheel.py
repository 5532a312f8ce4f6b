"""Release wheels: download, check, read.

Owns `wheels/` under the cache directory. pip does the download, so an index, a mirror or a proxy is configured where
pip is configured.
"""

import hashlib
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from patchseries import programs
from patchseries.errors import ToolError
from patchseries.listing import EXECUTABLE, NATIVE, REGULAR
from patchseries.pin import Pin, Wheel


def python_tag() -> str:
    """Python tag of the running interpreter, such as `cp311`."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def matching(pin: Pin) -> Wheel | None:
    """The pinned wheel whose native modules the running interpreter can load."""
    for wheel in pin.wheels:
        if wheel.python == python_tag() and wheel.platform.endswith("_" + platform.machine()):
            return wheel
    return None


def here() -> Wheel:
    """What a wheel for the running interpreter on this machine is called."""
    return Wheel(python_tag(), f"manylinux_2_34_{platform.machine()}", "", "")


def release_of(path: Path) -> str:
    """The version in a wheel's file name; ToolError if it is not named as wheels are."""
    parts = path.name.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):
        raise ToolError(f"{path.name} is not named as wheels are (package-version-python-abi-platform.whl): rename it")
    return parts[1]


def describe(path: Path) -> Wheel:
    """A wheel's file as the pin names it."""
    release_of(path)
    python, _abi, tag = path.name.removesuffix(".whl").split("-")[-3:]
    return Wheel(python, tag.split(".")[-1], path.name, sha256(path))


def keep(path: Path, cache: Path) -> Path:
    """A wheel's file in the cache, copied there if it lies elsewhere."""
    place = cache / "wheels" / path.name
    if path.resolve() != place.resolve():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            Path(shutil.copy(path, scratch)).rename(place)
    return place


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cached(wheel: Wheel, cache: Path) -> Path | None:
    """The wheel's file in the cache if it is there and intact."""
    path = cache / "wheels" / wheel.file
    return path if path.is_file() and sha256(path) == wheel.sha256 else None


def fetch(pin: Pin, wheel: Wheel, cache: Path) -> Path:
    """A pinned wheel's file: from the cache, else downloaded and checked against its sha256."""
    if path := cached(wheel, cache):
        return path
    return download(pin.package, pin.release, wheel.python, wheel.platform, cache, wheel)


def releases(package: str) -> list[str]:
    """The versions that the package index has, newest first; ToolError if it cannot be asked."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    done = programs.run(command)
    match = re.search(r"^Available versions: (.+)$", done.stdout.decode(errors="replace"), re.MULTILINE)
    if done.returncode or not match:
        raise ToolError(f"the package index does not tell the releases of {package}: check the network")
    return match[1].split(", ")


def download(package: str, release: str, python: str, tag: str, cache: Path, expected: Wheel | None = None) -> Path:
    """Download a release wheel with pip into the cache.

    `expected` is checked before the file gets its place, so the cache never holds a wrong one.
    """
    place = cache / "wheels"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        command = [
            *[sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"],
            *["--no-deps", "--no-cache-dir", "--only-binary=:all:", f"--dest={scratch}"],
            *["--implementation=cp", f"--python-version={python[2:]}", f"--abi={python}", "--abi=abi3", "--abi=none"],
            *[f"--platform={tag}", "--platform=any", f"{package}=={release}"],
        ]
        done = programs.run(command)
        found = list(Path(scratch).glob("*.whl"))
        if done.returncode or not found:
            lines = done.stdout.decode(errors="replace").splitlines() or ["pip gave no reason"]
            errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
            reason = (errors or lines)[-1]
            raise ToolError(
                f"{package} {release} for {python} could not be downloaded ({reason}): check the network and pip's "
                "configuration, or pass the wheel with --source FILE"
            )
        if expected:
            verify(found[0], expected)
        return found[0].rename(place / found[0].name)


def verify(path: Path, wheel: Wheel) -> None:
    """ToolError unless the file has the pinned sha256."""
    actual = sha256(path)
    if actual != wheel.sha256:
        raise ToolError(
            f"{path.name} has sha256 {actual}, upstream.toml says {wheel.sha256}: the file is truncated or altered; "
            "get it again, or correct the pin if upstream replaced it"
        )


def sources(path: Path, package: str) -> Iterator[tuple[str, str, bytes]]:
    """(path, git mode, content) of every source file of a wheel in upstream's layout, `python/PACKAGE/...`."""
    with _open(path) as archive:
        for info in archive.infolist():
            name = info.filename
            if name.startswith(package + "/") and not info.is_dir() and not NATIVE.search(name):
                yield f"python/{name}", EXECUTABLE if info.external_attr >> 16 & 0o100 else REGULAR, archive.read(info)


def natives(path: Path, package: str) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the native modules of a wheel, `python/PACKAGE/...`."""
    with _open(path) as archive:
        for info in archive.infolist():
            if info.filename.startswith(package + "/") and NATIVE.search(info.filename):
                yield f"python/{info.filename}", archive.read(info)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise ToolError(f"{path} is not a readable wheel ({error}): get it again") from None
