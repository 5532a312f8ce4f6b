"""The pinned release itself and the series of this repository, end to end."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import apply
from patchseries import build, pin, programs, series, upstream, wheel
from patchseries.console import Console
from patchseries.listing import EMPTY_BLOB, EXECUTABLE, scan
from patchseries.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache() -> Path:
    """The user's cache: the wheel is downloaded once for the machine, not once for each run of the tests."""
    return apply.default_cache()


def copy_of_this_repository(root: Path) -> build.Project:
    for name in ("apply.py", "series", "upstream.toml", "PATCHES.md"):
        shutil.copy(ROOT / name, root)
    for name in ("patches", "patchseries"):
        shutil.copytree(ROOT / name, root / name)
    (root / "tests").symlink_to(ROOT / "tests")
    return build.Project(root)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory, cache) -> build.Project:
    """A copy of this repository in which apply.py ran."""
    project = copy_of_this_repository(tmp_path_factory.mktemp("checkout"))
    build.make(project, Store(cache), Console(quiet=True))
    return project


def test_build_has_the_pinned_tree(checkout, cache):
    record = build.read_record(checkout.build)
    pinned = pin.load(checkout.pin)
    assert record.trees[0] == pinned.products.pristine_tree and record.trees[-1] == pinned.products.patched_tree
    listing = Store(cache).listing(pinned.products.patched_tree)
    assert build.contents(checkout.build, record) == listing


def test_upstreams_odd_files_are_as_upstream_has_them(checkout, cache):
    """Empty files, exec bits, CRLF files and native modules: all of them are in the release."""
    record = build.read_record(checkout.build)
    store = Store(cache)
    pristine = store.listing(record.trees[0])
    found = build.contents(checkout.build, record)
    untouched = set(pristine) - set(series.touched(series.load(checkout.series, checkout.patches)))
    empty = [path for path in untouched if pristine[path].blob == EMPTY_BLOB]
    executable = [path for path in untouched if pristine[path].mode == EXECUTABLE]
    contents = store.read(pristine[path].blob for path in untouched)
    crlf = [path for path in untouched if b"\r\n" in contents[pristine[path].blob]]
    assert len(empty) > 50 and len(executable) > 20 and len(crlf) > 10 and len(record.natives) == 5
    for path in [*empty, *executable, *crlf]:
        assert found[path] == pristine[path]
    for path, digest in record.natives.items():
        assert wheel.sha256(checkout.build / path) == digest


def test_quilt_alone_makes_the_same_tree(checkout, cache):
    pinned = pin.load(checkout.pin)
    store = Store(cache)
    tree = checkout.root / "by-hand"
    tree.mkdir()
    store.export(pinned.products.pristine_tree, tree)
    done = programs.run(["quilt", "push", "-a", "--fuzz=0"], tree, **programs.QUILT_ENVIRONMENT)
    assert done.returncode == 0, done.stdout.decode()
    assert b"offset" not in done.stdout and b"fuzz" not in done.stdout
    assert scan(tree, skip=lambda path: path == ".pc") == store.listing(pinned.products.patched_tree)


def test_a_refresh_is_an_empty_diff(tmp_path, cache):
    checkout = copy_of_this_repository(tmp_path)
    done = run(checkout, cache, "--refresh")
    assert done.returncode == 0 and "no patch rewritten" in done.stdout, done.stdout + done.stderr
    for name in ["PATCHES.md", *(f"patches/{path.name}" for path in checkout.patches.iterdir())]:
        assert (checkout.root / name).read_bytes() == (ROOT / name).read_bytes()


def test_lint_has_no_problem(checkout, cache):
    done = run(checkout, cache, "--lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_run_is_a_no_op_and_needs_no_network(checkout, cache):
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "https_proxy": "http://127.0.0.1:9"}
    done = run(checkout, cache, **nowhere)
    assert done.returncode == 0 and "up to date" in done.stdout, done.stdout + done.stderr


def test_doctor_knows_the_build_from_the_release(checkout, cache):
    assert run(checkout, cache, "--doctor", PYTHONPATH=str(checkout.build / "python")).returncode == 0
    pristine = checkout.root / "pristine"
    pristine.mkdir()
    Store(cache).export(pin.load(checkout.pin).products.pristine_tree, pristine)
    done = run(checkout, cache, "--doctor", PYTHONPATH=str(pristine / "python"))
    assert done.returncode == 1 and "unpatched" in done.stdout


def test_every_cached_wheel_of_the_pin_has_the_same_sources(cache):
    found, compared = upstream.compare_wheels(pin.load(ROOT / "upstream.toml"), Store(cache), Console(quiet=True))
    assert compared >= 1 and found.tree == pin.load(ROOT / "upstream.toml").products.pristine_tree


def run(project: build.Project, cache: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "apply.py", "--cache", str(cache), *arguments]
    return subprocess.run(
        command, cwd=project.root, env=programs.environment(**environment), capture_output=True, text=True
    )
