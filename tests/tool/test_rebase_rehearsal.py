"""Two patches of this series taken back to 0.5.22, on upstream's own code: an offset, a conflict, its resolution, the
intent check. `rehearsal/` has the patches as they were, and what a person made of the conflict."""

import shutil
from pathlib import Path

import pytest

import apply
from patchseries import chain, patchfile, pin, upstream, wheel
from patchseries.build import Project
from patchseries.console import Console
from patchseries.listing import scan
from patchseries.store import Store

HERE = Path(__file__).with_name("rehearsal")
SERIES = ("row-parallel-linear-scatter-rows.patch", "moe-scatter-rows.patch")


@pytest.fixture(scope="module")
def cache():
    """The user's cache: a release is downloaded once for the machine."""
    return apply.default_cache()


@pytest.fixture
def project(tmp_path, cache):
    made = Project(tmp_path / "fork")
    made.patches.mkdir(parents=True)
    for name in SERIES:
        shutil.copy(HERE / name, made.patches)
    made.series.write_text("".join(name + "\n" for name in SERIES))
    shutil.copy(HERE / "upstream.toml", made.pin)
    pinned = pin.load(made.pin)
    like = wheel.matching(pinned) or pinned.wheels[0]  # one wheel is enough: each of 0.5.22's would be fetched as well
    pin.move(pinned, pinned.release, pinned.tag, [like], None, pinned.git, 1)
    return made


def run(project, cache, capsys, *arguments):
    capsys.readouterr()
    status = apply.main(["--cache", str(cache), *arguments], project.root)
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_back_to_0_5_22(project, cache, capsys):
    assert run(project, cache, capsys, "--update-pin")[0] == 0
    before = scan(project.root)
    status, output = run(project, cache, capsys, "--rebase", "0.5.22")
    assert status == 2 and "moe-scatter-rows.patch conflicts with wheel sglang 0.5.22" in output
    place = project.root / "rebase" / "tree"
    file = place / "python/sglang/srt/models/deepseek_v2.py"
    marked = file.read_bytes()
    assert marked.count(b"<<<<<<< upstream\n") == marked.count(b">>>>>>> moe-scatter-rows.patch\n") == 3
    compile((place / "python/sglang/srt/layers/linear.py").read_bytes(), "linear.py", "exec")
    assert {path: entry for path, entry in scan(project.root).items() if not path.startswith("rebase/")} == before

    assert run(project, cache, capsys, "--continue")[0] == 2, "the markers are still there"
    resolve(file, cache)
    status, output = run(project, cache, capsys, "--continue")
    assert status == 1 and "moe-scatter-rows.patch: 5 differences" in output
    assert "lost    +                or leave_output_sum  (in DeepseekV2MoE.forward)" in output
    assert "row-parallel-linear-scatter-rows.patch:" not in output, "it only moved by three lines"

    status, output = run(project, cache, capsys, "--continue", "--accept", "moe-scatter-rows.patch")
    assert status == 0 and "the series is on wheel sglang 0.5.22" in output
    assert "row_parallel_gbar_matmul: changed" in output, "a symbol that a patch watches"
    assert pin.load(project.pin).release == "0.5.22" and not (project.root / "rebase").exists()

    status, output = run(project, cache, capsys, "--check")
    assert status == 0 and "2 patches: 2 clean; 13 hunks: 13 clean" in output
    store, moved = Store(cache), pin.load(project.pin)
    after = store.file(moved.products.patched_tree, "python/sglang/srt/models/deepseek_v2.py")
    compile(after, "deepseek_v2.py", "exec")
    assert b"scatter_rows=scatter_rows" in after and b"leave_output_sum" not in after


def resolve(file, cache):
    """What the person did, as a patch on the file of 0.5.22."""
    store = Store(cache)
    tree = upstream.resolve(pin.load(HERE / "upstream.toml"), store, Console(quiet=True), ref="0.5.22").tree
    step = chain.apply_patch(store, tree, patchfile.read(HERE / "resolution.patch"))
    file.write_bytes(store.file(step.after, "python/sglang/srt/models/deepseek_v2.py"))
