"""Base images for the image tests: this machine's Python, a package in it, and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from forks import Files, write_files

from patchseries.listing import Listing, read_entry

PYTHON = Path(sys.base_prefix)
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
SITE = STANDARD_LIBRARY / "site-packages"
"""Where packages lie in the image: the path that its Python searches by itself."""

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "*.a")


def why_not() -> str | None:
    """Why no image can be built here; None if one can."""
    if not shutil.which("buildah"):
        return "buildah is not installed (Debian: apt-get install buildah)"
    if os.geteuid() != 0:
        return "building without a container runtime needs root"
    return None


needs_buildah = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


class Images:
    """A container storage of its own, and the images in it. `localhost/python` has this machine's Python only."""

    def __init__(self, directory: Path):
        self.directory = directory
        (directory / "root").mkdir(parents=True)
        configuration = directory / "storage.conf"
        configuration.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n'
        )
        self.environment = {
            "CONTAINERS_STORAGE_CONF": str(configuration),
            "STORAGE_DRIVER": "vfs",
            "BUILDAH_ISOLATION": "chroot",
        }
        _lay_python(directory / "root")
        self.commit("python", "scratch", directory / "root")

    def commit(self, name: str, base: str, root: Path, *configuration: str) -> str:
        """The image `localhost/NAME`: a base and the contents of a directory."""
        container = self.run("from", "--pull-never", base)
        self.run("add", container, str(root), "/")
        self.run("config", f"--env=PATH={PYTHON}/bin:/bin", *configuration, container)
        self.run("commit", "--quiet", "--rm", container, f"localhost/{name}")
        return f"localhost/{name}"

    def with_package(self, name: str, files: Files, site: Path = SITE, **others: str) -> str:
        """An image with the package of these files in `site`; others: further files, by path below `site`."""
        root = self.directory / name
        write_files(root / site.relative_to("/") / "sglang", files)
        for path, text in others.items():
            _below(root, site / path).write_text(text)
        return self.commit(name, "localhost/python", root)

    def python(self, image: str, *arguments: str) -> str:
        """What the image's Python prints."""
        return self.run("run", self.run("from", "--pull-never", image), "--", "python3", *arguments)

    def listing(self, image: str) -> Listing:
        """Every file of an image, bytecode too."""
        root = Path(self.run("mount", self.run("from", "--pull-never", image)))
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        return {"/" + path.relative_to(root).as_posix(): read_entry(path) for path in files}

    def configuration(self, image: str) -> dict:
        """The image's OCI configuration."""
        return json.loads(self.run("inspect", "--type=image", image))["OCIv1"]

    def exists(self, image: str) -> bool:
        return image in self.run("images", "--format={{.Name}}").split()

    def run(self, *command: str) -> str:
        done = subprocess.run(
            ["buildah", *command], capture_output=True, text=True, env={**os.environ, **self.environment}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def _lay_python(root: Path) -> None:
    for path in ("tmp", "etc", "bin", "proc", "sys", "dev", "run"):
        (root / path).mkdir()
    for name in ("hosts", "hostname", "resolv.conf"):
        (root / "etc" / name).touch()
    python = Path(sys.executable).resolve()
    shutil.copytree(STANDARD_LIBRARY, _below(root, STANDARD_LIBRARY), ignore=_LEFT_OUT)
    binaries = [python, Path("/bin/sh"), *STANDARD_LIBRARY.rglob("lib-dynload/*.so")]
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True).stdout
    for library in {*re.findall(r"(/\S+\.so[.\w-]*) \(0x", listed), "/bin/sh"}:
        _below(root, Path(library)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, _below(root, Path(library)))
    _below(root, PYTHON / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(python, _below(root, PYTHON / "bin" / "python3"))


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
