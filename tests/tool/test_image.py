"""The patched image is the base and the changed files, is the same each time, or is not made."""

import importlib.util
import json
import os
import py_compile
import re
from pathlib import Path

import pytest
from base_images import SITE, Images, needs_buildah
from forks import UPSTREAM

import apply
from patchseries import build, pin
from patchseries.listing import EXECUTABLE
from patchseries.store import Store

PACKAGE = f"{SITE}/sglang"
TAG = "localhost/patched"
CACHE = importlib.util.cache_from_source("other.py")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Skips where this machine does not let root build: a sandbox may forbid what a container needs."""
    try:
        made = Images(tmp_path_factory.mktemp("images") / "storage")
        made.python("localhost/python", "-c", "pass")
    except AssertionError as error:
        if re.search(r"operation not permitted|permission denied", str(error), re.IGNORECASE):
            pytest.skip(f"no image can be built here: {str(error).splitlines()[0]}")
        raise
    return made


@pytest.fixture
def images(storage: Images, monkeypatch: pytest.MonkeyPatch) -> Images:
    for name, value in storage.environment.items():
        monkeypatch.setenv(name, value)
    yield storage
    if storage.exists(TAG):
        storage.run("rmi", "--force", TAG)


def make(fork, base: str, *options: str) -> str:
    return fork.ok("--image", base, TAG, "--engine", "buildah", *options)


def refused(fork, images: Images, base: str, *options: str) -> str:
    output = fork.fails(1, "--image", base, TAG, "--engine", "buildah", *options)
    assert not images.exists(TAG)
    return output


@needs_buildah
def test_it_is_the_base_and_the_changed_files(built, images):
    base = images.with_package("plain", UPSTREAM)
    output = make(built, base)
    assert f"{TAG} is 1.2.3+fork.1 over {base}: sha256:" in output and "the content is the patched tree" in output
    before, after = images.listing(base), images.listing(TAG)
    differing = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    changed = ("linear.py", "other.py", "srt/rows.py", "_version.py", "_patchseries.json")
    assert differing == {f"{PACKAGE}/{path}" for path in changed}
    for path in ("linear.py", "other.py", "srt/rows.py"):
        assert images.python(TAG, "-c", f"print(open({PACKAGE + '/' + path!r}).read(), end='')").strip() == (
            built.file(path).read_text().strip()
        )
    assert after[f"{PACKAGE}/srt/tool.sh"].mode == EXECUTABLE
    assert images.python(TAG, "-c", "import sglang._version as v; print(v.version)") == "1.2.3+fork.1"


@needs_buildah
def test_it_says_what_it_is(built, images):
    make(built, images.with_package("plain", UPSTREAM))
    labels = images.configuration(TAG)["config"]["Labels"]
    record = json.loads(images.python(TAG, "-c", f"print(open('{PACKAGE}/_patchseries.json').read())"))
    digest = pin.load(built.project.pin).products.series
    assert labels["org.opencontainers.image.version"] == record["version"] == "1.2.3+fork.1"
    assert labels["org.opencontainers.image.base.name"] == "localhost/plain"
    assert labels["patchseries.upstream.tag"] == record["upstream"]["tag"] == "v1.2.3"
    assert labels["patchseries.upstream.commit"] == "wheel, no commit id" and record["upstream"]["commit"] is None
    assert labels["patchseries.series.sha256"] == record["series"]["sha256"] == digest
    assert labels["patchseries.base"] == "as pinned" and record["base_differs"] == {}


@needs_buildah
def test_the_same_inputs_give_the_same_image(built, images):
    base = images.with_package("plain", UPSTREAM)
    first = make(built, base).split("sha256:")[-1]
    layers = images.configuration(TAG)["rootfs"]["diff_ids"]
    assert make(built, base).split("sha256:")[-1] == first
    assert images.configuration(TAG)["rootfs"]["diff_ids"] == layers and len(layers) == 3
    built.add_change("third.patch", other_py=b"def other():\n    return 3\n")
    built.ok("--update-pin")
    assert make(built, base).split("sha256:")[-1] != first


@needs_buildah
def test_bytecode_of_what_changed_is_gone(built, images, tmp_path):
    """Unchecked bytecode, which Python runs without a look at the source; of this Python, and of another one."""
    site = tmp_path / "root" / SITE.relative_to("/")
    images.with_package("plain", UPSTREAM)
    for name in ("other.py", "srt/dos.py"):
        source = site / "sglang" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(UPSTREAM[name])
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(source), dfile=f"/{source.relative_to(tmp_path / 'root')}", invalidation_mode=mode)
    caches = site / "sglang" / "__pycache__"
    (caches / "other.cpython-312.opt-1.pyc").write_bytes(b"old")
    base = images.commit("compiled", "localhost/plain", tmp_path / "root")
    returned = "import sglang.other as o; print(o.other())"
    assert images.python(base, "-c", returned) == "1"
    make(built, base)
    assert images.python(TAG, "-c", returned) == "2"
    left = [path for path in images.listing(TAG) if path.startswith(PACKAGE) and path.endswith(".pyc")]
    assert left == [f"{PACKAGE}/srt/{CACHE.replace('other', 'dos')}"]


@needs_buildah
def test_an_editable_checkout_is_patched_in_place(built, images):
    """As upstream's own images are made: a .pth file points into a checkout, which has files that no wheel has."""
    checkout = Path("/sgl-workspace/sglang/python")
    files = {path: text for path, text in UPSTREAM.items() if path != "_version.py"} | {
        "notes.txt": b"of the checkout\n"
    }
    images.with_package("checkout", files, checkout)
    root = images.directory / "pth"
    (root / SITE.relative_to("/")).mkdir(parents=True)
    (root / SITE.relative_to("/") / "__editable__.sglang.pth").write_text(f"{checkout}\n")
    make(built, images.commit("editable", "localhost/checkout", root, "--workingdir=/sgl-workspace"))
    assert images.python(TAG, "-c", "import sglang.other as o; print(o.other(), o.__file__)") == (
        f"2 {checkout}/sglang/other.py"
    )
    assert f"{checkout}/sglang/notes.txt" in images.listing(TAG)


@needs_buildah
def test_another_base_is_refused(built, images):
    other = images.with_package("other", {**UPSTREAM, "srt/dos.py": b"first = 1\n"})
    output = refused(built, images, other)
    assert "is not the pinned sglang 1.2.3: 1 files differ" in output and "--accept-base" in output
    assert "  changed   srt/dos.py" in output


@needs_buildah
def test_another_base_is_accepted_on_record(built, images):
    other = images.with_package("other", {**UPSTREAM, "srt/dos.py": b"first = 1\n"})
    assert "1 differences of the base accepted" in make(built, other, "--accept-base")
    assert images.configuration(TAG)["config"]["Labels"]["patchseries.base"] == "differences accepted"
    record = json.loads(images.python(TAG, "-c", f"print(open('{PACKAGE}/_patchseries.json').read())"))
    assert list(record["base_differs"]) == ["srt/dos.py"]


@needs_buildah
@pytest.mark.parametrize("name", ["other.py", "srt/rows.py"])
def test_files_that_the_series_changes_are_never_overwritten_unseen(built, images, name):
    other = images.with_package("touched", {**UPSTREAM, name: b"def other():\n    return 9\n"})
    output = refused(built, images, other, "--accept-base")
    assert "has other versions of 1 files that the series changes" in output and name in output


@needs_buildah
def test_a_patched_base_is_refused(built, images):
    make(built, images.with_package("plain", UPSTREAM))
    images.run("tag", TAG, "localhost/patched-before")
    images.run("rmi", TAG)
    assert "is 1.2.3+fork.1 already" in refused(built, images, "localhost/patched-before")


@needs_buildah
def test_a_base_without_the_package_is_refused(built, images):
    assert "imports no sglang" in refused(built, images, "localhost/python")


@needs_buildah
def test_a_base_that_is_not_there_is_said(built, images):
    output = built.fails(3, "--image", "localhost/nowhere", TAG, "--engine", "buildah")
    assert "buildah could not build the image" in output and "nowhere" in output


@needs_buildah
def test_the_release_itself(images):
    """The pinned release as a base, and the series of this repository."""
    project, store = build.Project(apply.ROOT), Store(apply.default_cache())
    pinned = pin.load(project.pin)
    root = images.directory / "release"
    place, exported = root / SITE.relative_to("/"), images.directory / "exported"
    for directory in (place, exported):
        directory.mkdir(parents=True)
    store.export(pinned.products.pristine_tree, exported)
    (exported / "python" / "sglang").rename(place / "sglang")
    base = images.commit("release", "localhost/python", root)
    assert apply.main(["--quiet", "--image", base, TAG, "--engine", "buildah"]) == 0
    text = images.python(TAG, "-c", f"print(open('{PACKAGE}/_version.py').read())")
    assert f'__version__ = version = "{pinned.version}"' in text


def test_the_first_engine_that_can_build_is_taken(built, tmp_path, monkeypatch):
    """docker is often installed where no daemon runs."""
    for name, status in {"docker": 1, "podman": 0, "buildah": 0}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} $* >> {tmp_path}/log\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    from patchseries import image

    assert image.ready(None) == "podman"
    assert "docker cannot build here" in built.fails(3, "--image", "base", "tag", "--engine", "docker")
    assert "'lxc' is no container engine" in built.fails(3, "--image", "base", "tag", "--engine", "lxc")


@pytest.mark.parametrize("options", [("--accept-base",), ("--engine", "podman"), ("--wheel", "--accept-base")])
def test_options_that_nothing_would_look_at_are_refused(built, options):
    assert "are for --image" in built.fails(3, *options)


def test_without_an_engine_it_is_said(built, monkeypatch):
    from patchseries import image

    monkeypatch.setattr(image.shutil, "which", lambda name: None)
    assert "docker or podman or buildah is needed" in built.fails(3, "--image", "base", "tag")
