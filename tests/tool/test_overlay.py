"""The overlay file patches what an interpreter imports, all of it or nothing, and needs nothing but that Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import UPSTREAM, write_files

from patchseries import listing, overlay


@pytest.fixture
def laid(built, tmp_path) -> tuple[Path, Path]:
    """An overlay file, and a directory with the unpatched package."""
    built.ok("--overlay")
    return next((built.root / "dist").glob("*.pyz")), write_files(tmp_path / "site" / "sglang", UPSTREAM).parent


def run(file: Path, site: Path, *options: str, cwd: Path | None = None) -> tuple[int, str]:
    """The overlay file under a Python that has the standard library and `site`, and nothing else."""
    done = subprocess.run(
        [sys.executable, "-S", str(file), *options],
        cwd=cwd or site.parent, env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"]},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def contents(directory: Path) -> dict:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


def test_it_patches_the_package_and_the_doctor_agrees(built, laid):
    file, site = laid
    assert run(file, site, "--doctor")[0] == 1
    status, output = run(file, site)
    assert status == 0 and "overlay: 3 files of 1.2.3+fork.1" in output and "the content is the patched tree" in output
    for path in ("linear.py", "other.py", "srt/rows.py"):
        assert (site / "sglang" / path).read_bytes() == built.file(path).read_bytes()
    assert run(file, site, "--doctor")[0] == 0


def test_apply_and_the_overlay_look_with_the_same_eyes(built, laid):
    from test_which_copy_is_imported import doctor

    file, site = laid
    assert run(file, site)[0] == 0
    (site / "sglang" / "other.py").write_bytes(b"def other():\n    return 3\n")
    by_overlay = run(file, site, "--doctor")[1].splitlines()
    by_apply = doctor(built, site)[1].splitlines()
    found = [line for line in by_apply if line.startswith(("imports ", "native ", "changed "))]
    assert len(found) == 2 and set(found) <= set(by_overlay) and "changed   other.py" in found


def test_the_same_series_gives_the_same_file(built, laid):
    first = laid[0].read_bytes()
    built.ok("--overlay")
    assert laid[0].read_bytes() == first


@pytest.mark.parametrize("options", [(), ("--accept-base",)])
def test_a_refusal_changes_nothing(laid, options):
    file, site = laid
    (site / "sglang" / "linear.py").write_bytes(b"another = 1\n")
    before = contents(site)
    status, output = run(file, site, *options)
    assert status == 1 and "changed   linear.py" in output and contents(site) == before


def test_a_write_that_fails_changes_nothing(laid):
    """The last file cannot be written: the first ones are not in place either."""
    file, site = laid
    (site / "sglang" / ".rows.py.new").mkdir()
    (site / "sglang" / "srt" / ".rows.py.new").mkdir()
    before = contents(site)
    status, output = run(file, site)
    assert status == 3 and "cannot be written" in output
    assert contents(site) == before


def test_a_second_time_is_refused(laid):
    file, site = laid
    run(file, site)
    before = contents(site)
    status, output = run(file, site)
    assert status == 1 and "is 1.2.3+fork.1 already" in output and contents(site) == before


def test_accepted_differences_are_known_to_the_doctor_and_no_others(laid):
    file, site = laid
    dos = site / "sglang" / "srt" / "dos.py"
    dos.write_bytes(b"first = 1\n")
    (site / "sglang" / "srt" / "tool.sh").unlink()
    assert run(file, site)[0] == 1
    assert run(file, site, "--accept-base")[0] == 0
    status, output = run(file, site, "--doctor")
    assert status == 0 and "accepted  srt/dos.py" in output and "accepted  srt/tool.sh" in output
    dos.write_bytes(b"first = 2\n")
    status, output = run(file, site, "--doctor")
    assert status == 1 and "changed   srt/dos.py" in output


def test_a_record_cannot_excuse_a_file_that_the_series_changes(laid):
    file, site = laid
    run(file, site)
    package = site / "sglang"
    (package / "linear.py").write_bytes(UPSTREAM["linear.py"])
    record = json.loads((package / "_patchseries.json").read_text())
    record["base_differs"] = {"linear.py": listing.blob_id(UPSTREAM["linear.py"])}
    (package / "_patchseries.json").write_text(json.dumps(record))
    status, output = run(file, site, "--doctor")
    assert status == 1 and "unpatched linear.py" in output


def test_leftovers_of_an_older_series_are_found_out(built, laid):
    """An installation of a series that had one more file, brought up to date by hand."""
    file, site = laid
    run(file, site)
    package = site / "sglang"
    record = json.loads((package / "_patchseries.json").read_text())
    record |= {"version": "1.2.3+fork.0", "files": {**record["files"], "srt/old.py": "0" * 40}}
    record["series"]["sha256"] = "0" * 64
    (package / "_patchseries.json").write_text(json.dumps(record))
    (package / "srt" / "old.py").write_text("OLD = 1\n")
    status, output = run(file, site, "--doctor")
    assert status == 1 and "leftover  srt/old.py" in output
    assert "record    _patchseries.json is of another series, 1.2.3+fork.0" in output


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("_version.py", "__version__ = version = '1.2.3'\n", "record    _version.py does not say 1.2.3+fork.1"),
        ("_patchseries.json", "{", "record    _patchseries.json cannot be read"),
    ],
)
def test_what_a_delivery_says_of_itself_is_checked(laid, name, text, line):
    file, site = laid
    run(file, site)
    (site / "sglang" / name).write_text(text)
    status, output = run(file, site, "--doctor")
    assert status == 1 and line in output


def test_files_of_nobody_and_native_modules_are_shown_and_no_problem(laid):
    file, site = laid
    (site / "sglang" / "notes.txt").write_text("of the checkout\n")
    (site / "sglang" / "srt" / "_core.cpython-311-x.so").write_bytes(b"\x7fELF")
    run(file, site)
    status, output = run(file, site, "--doctor")
    assert status == 0 and "foreign   1 files that the release does not have, such as notes.txt" in output
    assert "native    1 compiled modules, out of a patch's reach: _core" in output


def test_the_copy_that_a_server_would_run_is_meant(laid, tmp_path):
    """`python3 -m sglang.launch_server` looks in the directory it is started in first."""
    file, site = laid
    here = write_files(tmp_path / "here" / "sglang", UPSTREAM).parent
    status, output = run(file, site, cwd=here)
    assert status == 0 and f"imports   {here / 'sglang'}" in output
    assert f"also at   {site / 'sglang'} (shadowed)" in output


def test_a_directory_that_is_no_package_is_not_taken_for_one(laid, tmp_path):
    """The checkout beside the one that is installed: a directory of that name, without an __init__.py."""
    file, site = laid
    (tmp_path / "here" / "sglang").mkdir(parents=True)
    assert f"imports   {site / 'sglang'}" in run(file, site, "--doctor", cwd=tmp_path / "here")[1]
    shutil.rmtree(site / "sglang")
    status, output = run(file, site, "--doctor", cwd=tmp_path / "here")
    assert status == 1 and "imports no sglang" in output


def test_removed_files_are_removed(fork, tmp_path):
    fork.add_change("remove.patch", other_py=None)
    fork.ok("--update-pin")
    fork.ok("--overlay")
    site = write_files(tmp_path / "site" / "sglang", UPSTREAM).parent
    file = next((fork.root / "dist").glob("*.pyz"))
    status, output = run(file, site)
    assert status == 0, output
    assert not (site / "sglang" / "other.py").exists()
    (site / "sglang" / "other.py").write_bytes(UPSTREAM["other.py"])
    assert "unpatched other.py" in run(file, site, "--doctor")[1]


def test_bytecode_of_one_revision_does_not_pass_for_anothers(built, laid):
    """The time of the files is of the series: equal for equal series, and another one for another."""
    file, site = laid
    run(file, site)
    first = (site / "sglang" / "other.py").stat().st_mtime
    assert first == overlay.unpack(file)[0].time
    built.add_change("third.patch", other_py=b"def other():\n    return 3\n")
    built.ok("--update-pin")
    built.ok("--overlay")
    assert overlay.unpack(file)[0].time != first
