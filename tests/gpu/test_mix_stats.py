"""Promise: the hyper-connection kernels repeat themselves: one input, one result, however often they run.

Fails on Hopper without patches/mix-stats-hopper-repeatable.patch: the pipelined split-K kernel reads rows that are
being replaced.
"""

import pytest
import torch

from bench import mix_stats, rowlocal

RUNS = 40


def compensated_projection_runs_here():
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    return (major, minor) in ((9, 0), (10, 0), (10, 3))


needs_bf16x3 = pytest.mark.skipif(
    not compensated_projection_runs_here(), reason="the three-part bf16 projection runs on SM90 and SM100 only"
)
hopper_only = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="below 4096 rows the three-part bf16 projection runs on SM90 only",
)


def parts_of(weight):
    from sglang.kernels.ops.layernorm.mhc import split_bf16_hc_weight

    return split_bf16_hc_weight(weight)


@torch.no_grad
@needs_bf16x3
@pytest.mark.parametrize(
    "rows", [pytest.param(m, marks=hopper_only) for m in (128, 256, 512, 1024, 2048, 3072, 4095)] + [4096, 8192, 16384]
)
def test_mix_stats_repeat(rows):
    x, weight = mix_stats.inputs(rows)
    parts = parts_of(weight)
    equal, moved, largest = mix_stats.repeat(lambda: mix_stats.triplet(x, parts), RUNS)
    assert equal == RUNS, f"{RUNS - equal} of {RUNS} runs differ: up to {moved} elements, by up to {largest:.1e}"


@torch.no_grad
@hopper_only
def test_rows_have_the_same_bits_in_any_batch():
    """A row's statistics do not depend on how many rows are beside it."""
    x, weight = mix_stats.inputs(8192)
    parts = parts_of(weight)
    whole = mix_stats.triplet(x, parts)
    for rows in (32, 128, 1500, 2048, 4095, 4096):
        assert torch.equal(mix_stats.triplet(x[:rows].contiguous(), parts), whole[:rows]), rows


@torch.no_grad
@pytest.mark.parametrize("rows", (128, 1024, 2048, 3072, 4096, 8192))
@pytest.mark.parametrize("name", ("mix stats", "combine + norm", "post", "gate", "stream mean", "wkv", "wqkv_a"))
def test_every_row_local_operation_repeats(name, rows):
    operation = rowlocal.operations()[name]
    inputs = operation.inputs(rows)
    first = [t.clone() for t in operation.run(*inputs)]
    for run in range(RUNS):
        for a, b in zip(operation.run(*inputs), first, strict=True):
            assert torch.equal(a, b), f"run {run} of {name} at {rows} rows differs in {int((a != b).sum())} elements"
