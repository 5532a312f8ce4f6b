"""The patched wheel installs over the release, says what it is, and is the same each time."""

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

VERSION = "1.2.3+fork.1"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def made(built) -> Path:
    output = built.ok("--wheel")
    path = next((built.root / "dist").glob("*.whl"))
    assert f"dist/{path.name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" in output
    return path


def test_it_is_the_release_and_the_changed_files(built, made):
    before, after = members(built.wheel_path()), members(made)
    assert made.name == built.wheel_path().name.replace("-1.2.3-", f"-{VERSION}-")
    package = {name for name in before.keys() | after.keys() if name.startswith("sglang/")}
    differing = {name for name in package if before.get(name) != after.get(name)}
    changed = ("linear.py", "other.py", "srt/rows.py")
    assert differing == {f"sglang/{path}" for path in (*changed, "_version.py", "_patchseries.json")}
    for path in changed:
        assert after[f"sglang/{path}"] == built.file(path).read_bytes()
    with zipfile.ZipFile(made) as archive:
        assert archive.getinfo("sglang/srt/tool.sh").external_attr >> 16 & 0o111 == 0o111


def test_its_record_is_right(made):
    contents = members(made)
    own = f"sglang-{VERSION}.dist-info/RECORD"
    rows = {name: (digest, size) for name, digest, size in csv.reader(contents[own].decode().splitlines())}
    assert rows.pop(own) == ("", "") and rows.keys() == contents.keys() - {own}
    assert {name.split("/")[0] for name in contents} == {"sglang", f"sglang-{VERSION}.dist-info"}
    for name, (digest, size) in rows.items():
        found = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).decode().rstrip("=")
        assert (digest, size) == (f"sha256={found}", str(len(contents[name]))), name


def test_the_same_inputs_give_the_same_file(built, made):
    first = made.read_bytes()
    made.unlink()
    built.ok("--wheel")
    assert made.read_bytes() == first


def test_it_installs_over_the_release(built, made, tmp_path):
    """With pip, in an environment of its own; then the overlay's doctor and pip's own check look at it."""
    built.ok("--overlay")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"

    def run(*command: str | Path, status: int = 0) -> str:
        done = subprocess.run([python, *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    install = ("-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check")
    doctor = (next((built.root / "dist").glob("*.pyz")), "--doctor")
    run(*install, built.wheel_path())
    assert "unpatched linear.py" in run(*doctor, status=1)
    run(*install, made)
    shown = run("-c", "import sglang._version as v, importlib.metadata as m; print(v.version, m.version('sglang'))")
    assert shown.split() == [VERSION, VERSION]
    assert "the content is the patched tree" in run(*doctor)
    assert "No broken requirements" in run("-m", "pip", "check")
    assert run("-c", "import sglang.other as o; print(o.other())").strip() == "2"
    run(*install, "--force-reinstall", built.wheel_path())
    assert run("-c", "import sglang.other as o; print(o.other())").strip() == "1"
    assert list((tmp_path / "venv").rglob("_patchseries.json")) == []


def test_a_wheel_for_another_machine_is_chosen_by_a_part_of_its_name(built, made):
    output = built.fails(3, "--wheel", "cp399")
    assert "no pinned wheel is for cp399: there are cp3" in output
    made.unlink()
    built.ok("--wheel", "all")
    assert made.exists()


def test_a_failed_run_leaves_the_last_wheel(built, made):
    before = made.read_bytes()
    built.pin({**built.upstream, "linear.py": b"nothing alike\n"})
    built.fails(2, "--wheel")
    assert made.read_bytes() == before and [path.name for path in made.parent.iterdir()] == [made.name]
