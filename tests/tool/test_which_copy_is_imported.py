"""`--doctor` tells which copy an interpreter runs and whether its bytecode is of its source (accident 17)."""

import importlib.metadata
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import UPSTREAM, write_files

REPOSITORY = Path(__file__).parents[2]


def doctor(fork, *path: Path) -> tuple[int, str]:
    """`apply.py --doctor` in a fresh interpreter with these directories first on its import path."""
    shutil.copy(REPOSITORY / "apply.py", fork.root)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, REPOSITORY]))}
    done = subprocess.run(
        [sys.executable, "apply.py", "--doctor", "--cache", str(fork.cache)],
        cwd=fork.root, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_build_is_the_patched_tree(built):
    status, output = doctor(built, built.build / "python")
    assert status == 0 and "the content is the patched tree" in output
    assert f"imports   {built.build / 'python' / 'sglang'}" in output


def test_another_copy_in_front_is_found_out(built, tmp_path):
    other = write_files(tmp_path / "site" / "sglang", UPSTREAM).parent
    status, output = doctor(built, other, built.build / "python")
    assert status == 1 and f"imports   {other / 'sglang'}" in output
    assert "unpatched linear.py" in output and "missing   srt/rows.py" in output
    assert f"also at   {built.build / 'python' / 'sglang'} (shadowed)" in output


def test_no_copy_at_all_is_said(built):
    if any(importlib.metadata.distributions(name="sglang")):
        pytest.skip("an sglang is installed for this interpreter")
    status, output = doctor(built)
    assert status == 1 and "imports no sglang" in output


def test_bytecode_of_another_source_is_found_out(built, tmp_path):
    """The patched file laid over the old one with its time and size: Python goes on running the old code."""
    site = tmp_path / "site"
    shutil.copytree(built.build / "python", site)
    source = site / "sglang" / "other.py"
    patched = source.read_bytes()
    source.write_bytes(patched.replace(b"2", b"1"))
    py_compile.compile(str(source), doraise=True)
    status = source.stat()
    source.write_bytes(patched)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    status, output = doctor(built, site)
    assert status == 1 and "bytecode  __pycache__/other." in output

    py_compile.compile(str(source), doraise=True)
    assert doctor(built, site)[0] == 0


def test_unchecked_bytecode_is_found_out(built, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(built.build / "python", site)
    source = site / "sglang" / "other.py"
    patched = source.read_bytes()
    source.write_bytes(patched.replace(b"2", b"1"))
    py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_bytes(patched)
    assert "bytecode  __pycache__/other." in doctor(built, site)[1]


def test_outdated_bytecode_that_python_makes_anew_is_no_problem(built, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(built.build / "python", site)
    source = site / "sglang" / "other.py"
    patched = source.read_bytes()
    source.write_bytes(b"old = 1\n")
    py_compile.compile(str(source), doraise=True)
    source.write_bytes(patched)
    assert doctor(built, site)[0] == 0


@pytest.mark.parametrize("name", ["linear.py.orig", "linear.py.rej"])
def test_leftovers_are_found_out(built, tmp_path, name):
    site = tmp_path / "site"
    shutil.copytree(built.build / "python", site)
    (site / "sglang" / name).write_bytes(b"x")
    assert f"leftover  {name}" in doctor(built, site)[1]
