"""A small fork: a release wheel of its own upstream, a pin, a series, and the commands on them."""

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apply
from patchseries import programs, wheel
from patchseries.build import Project
from patchseries.console import Console
from patchseries.export import patch_from_trees
from patchseries.listing import EXECUTABLE, REGULAR, scan
from patchseries.patchfile import render
from patchseries.store import Store

Files = dict[str, bytes | tuple[bytes, str]]
"""Path below the package -> content, or (content, git mode)."""

NUMBERS = b"".join(b"value_%d = %d\n" % (n, n) for n in range(1, 41))
UPSTREAM: Files = {
    "__init__.py": b"",
    "_version.py": b"__version__ = version = '1.2.3'\n",
    "linear.py": NUMBERS,
    "other.py": b"def other():\n    return 1\n",
    "srt/__init__.py": b"",
    "srt/tool.sh": (b"#!/bin/sh\necho tool\n", EXECUTABLE),
    "srt/dos.py": b"first = 1\r\nsecond = 2\r\nthird = 3\r\n",
}
HEADER = """Description: {name}
 Because of the test.
Origin: vendor
Author: A Person <person@example.org>
Forwarded: no
Last-Update: 2026-01-31
Depends: none
Drop-When: upstream does the same
Verify: tests/engine/test_it.py::test_it
Watches: none"""


def entry(value: bytes | tuple[bytes, str]) -> tuple[bytes, str]:
    return value if isinstance(value, tuple) else (value, REGULAR)


def write_files(directory: Path, files: Files) -> Path:
    for path, value in files.items():
        content, mode = entry(value)
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if mode == EXECUTABLE else 0o644)
    return directory


def write_wheel(path: Path, files: Files, native: bytes | None = b"\x7fELF native") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in files.items():
            content, mode = entry(value)
            info = zipfile.ZipInfo(f"sglang/{name}")
            info.external_attr = int(mode, 8) << 16
            archive.writestr(info, content)
        if native:
            archive.writestr("sglang/srt/_native.cpython-0-x.so", native)
        about = {"METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 1.2.3\n", "RECORD": ""}
        about["WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
        for name, text in about.items():
            archive.writestr(f"sglang-1.2.3.dist-info/{name}", text)
    return path


@dataclass
class Fork:
    """A checkout of a small fork. `upstream` is what its pinned wheel has."""

    root: Path
    cache: Path
    upstream: Files = field(default_factory=lambda: dict(UPSTREAM))
    capture: Callable | None = None

    @property
    def project(self) -> Project:
        return Project(self.root)

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def store(self) -> Store:
        return Store(self.cache)

    @property
    def console(self) -> Console:
        return Console(quiet=True)

    def pin(self, files: Files | None = None) -> None:
        """Write a release wheel and pin it."""
        self.upstream = self.upstream if files is None else files
        name = f"sglang-1.2.3-{wheel.python_tag()}-{wheel.python_tag()}-linux_{os.uname().machine}.whl"
        (self.cache / "wheels").mkdir(parents=True, exist_ok=True)
        path = write_wheel(self.cache / "wheels" / name, self.upstream)
        (self.root / "upstream.toml").write_text(
            f"""[upstream]
package = "sglang"
release = "1.2.3"
tag = "v1.2.3"
git = "file:///nowhere"
[fork]
name = "fork"
revision = 1
[[wheel]]
python = "{wheel.python_tag()}"
platform = "linux_{os.uname().machine}"
file = "{name}"
sha256 = "{hashlib.sha256(path.read_bytes()).hexdigest()}"
"""
        )

    def wheel_path(self) -> Path:
        return next((self.cache / "wheels").glob("*.whl"))

    def tree(self, files: Files) -> str:
        triples = [(f"python/sglang/{path}", entry(value)[1], entry(value)[0]) for path, value in files.items()]
        return self.store.import_files("refs/test/tree", triples)

    def patch_between(self, name: str, before: Files, after: Files, header: str | None = None) -> bytes:
        header = HEADER.format(name=name) if header is None else header
        found = patch_from_trees(self.store, name, header.encode(), self.tree(before), self.tree(after))
        return render(found)

    def add(self, name: str, text: bytes) -> Path:
        """Append a patch to the series."""
        (self.root / "patches").mkdir(exist_ok=True)
        path = self.root / "patches" / name
        path.write_bytes(text)
        with open(self.root / "series", "a") as series:
            series.write(name + "\n")
        return path

    def add_change(self, name: str, **changes: bytes | tuple[bytes, str] | None) -> Path:
        """Append a patch that sets files (None removes one). `linear_py` and `srt__x_py` name linear.py and srt/x.py.

        The state after it becomes the base of the next change.
        """
        return self.add_files(name, {_path(key): value for key, value in changes.items()})

    def add_files(self, name: str, changes: dict[str, bytes | tuple[bytes, str] | None]) -> Path:
        before = getattr(self, "patched", self.upstream)
        after = {**before, **changes}
        after = {path: value for path, value in after.items() if value is not None}
        self.patched = after
        return self.add(name, self.patch_between(name, before, after))

    def run(self, *arguments: str) -> tuple[int, str]:
        """apply.py in this process: (exit status, everything printed)."""
        self.capture()
        status = apply.main(["--cache", str(self.cache), *arguments], self.root)
        captured = self.capture()
        return status, captured.out + captured.err

    def ok(self, *arguments: str) -> str:
        status, output = self.run(*arguments)
        assert status == 0, output
        return output

    def fails(self, code: int, *arguments: str) -> str:
        """Run, expecting this exit status and one `apply.py:` line and no traceback; returns what was printed."""
        status, output = self.run(*arguments)
        assert status == code, output
        assert output.count("apply.py: ") == 1 and "Traceback" not in output, output
        return output

    def make(self) -> str:
        """Accept the series and build."""
        self.ok("--update-pin")
        return self.ok()

    def quilt(self, *command: str, status: int = 0) -> str:
        """quilt in build/, with the environment that `apply.py --edit` gives."""
        done = programs.run(["quilt", *command], self.build, **programs.QUILT_ENVIRONMENT)
        assert done.returncode == status, done.stdout.decode()
        return done.stdout.decode()

    def file(self, path: str) -> Path:
        return self.build / "python" / "sglang" / path

    def snapshot(self) -> dict:
        """Everything in the checkout: to prove that a failed run changed nothing."""
        return {path: (entry, (self.root / path).read_bytes()) for path, entry in scan(self.root).items()}


def _path(key: str) -> str:
    return key.replace("__", "/").replace("_py", ".py").replace("_sh", ".sh")


def change(content: bytes, *pairs: tuple[bytes, bytes]) -> bytes:
    """Replace texts that occur once."""
    for old, new in pairs:
        assert content.count(old) == 1, old
        content = content.replace(old, new)
    return content


def git(directory: Path, *command: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, *command], cwd=directory, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()
