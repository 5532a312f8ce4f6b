"""Promise: which batch runs sequence-parallel is one predicate of facts every rank shares, the same in every mode."""

from dataclasses import replace

import pytest
import torch
from agreement import WORLDS, digest
from chunks import SHORT_TAIL, STANDARD
from model import BatchSpec, build_model, configured, forward, make_batch
from ranks import collectives, device, run_ranks

THRESHOLD = 256
ON = ("transport", "sharded", "exact")


def at_rows(rank, world, mode, rows):
    with collectives() as moved:
        forward(SHORT_TAIL, BatchSpec((rows,)), mode, min_tokens=THRESHOLD)
    return any(operation != "all_reduce" for operation, _, _ in moved)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mode", ON)
@pytest.mark.parametrize(("rows", "enters"), ((THRESHOLD - 1, False), (THRESHOLD, True)))
def test_the_threshold(world, mode, rows, enters):
    assert run_ranks(world, at_rows, mode, rows) == [enters] * world


def decided(rank, world, mode):
    """{what is unusual: whether the chunk enters} for a chunk that would enter but for one fact."""
    from sglang.srt.layers.prefill_sp import plan_chunk
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.runner_utils import capture_mode

    build_model(STANDARD)
    rows = THRESHOLD
    batch = make_batch(BatchSpec((rows,)))
    hidden = torch.zeros(rows, 64, dtype=torch.bfloat16, device=device())
    found = {}

    def enters(batch=batch, hidden=hidden):
        return plan_chunk(batch, hidden) is not None

    with configured(prefill_sp_mode=mode, prefill_sp_min_tokens=THRESHOLD):
        for kind in ForwardMode:
            found[kind.name] = enters(replace(batch, forward_mode=kind))
        found["fp32"] = enters(hidden=hidden.float())
        found["not contiguous"] = enters(hidden=hidden.new_zeros(64, rows).t())
        found["no token ids"] = enters(replace(batch, input_ids=None))
        with capture_mode.model_capture_mode():
            found["graph capture"] = enters()
        with configured(prefill_sp_mode="off"):
            found["off"] = enters()
        found["after all of these"] = enters()
    return found


@pytest.mark.parametrize("mode", ON)
@pytest.mark.parametrize("world", (1, 4))
def test_only_a_plain_eager_bf16_extend_enters(world, mode):
    by_rank = run_ranks(world, decided, mode)
    assert all(found == by_rank[0] for found in by_rank), "the ranks decide differently"
    entered = {what for what, enters in by_rank[0].items() if enters}
    assert entered == ({"EXTEND", "after all of these"} if world > 1 else set())


def stock_batches(rank, world, kind, lens):
    """What off and sharded leave behind and move, for a batch that is no plain extend."""
    results = []
    for mode in ("off", "sharded"):
        with collectives() as moved:
            output = forward(STANDARD, BatchSpec(lens, kind=kind), mode, min_tokens=1)
        results.append(({name: digest(value) for name, value in output.tensors().items()}, moved))
    return results


@pytest.mark.parametrize("world", (2, 4))
@pytest.mark.parametrize(("kind", "lens"), (("mixed", (300, 1, 1)), ("idle", ())))
def test_mixed_and_idle_batches_run_stock(world, kind, lens):
    for off, sharded in run_ranks(world, stock_batches, kind, lens):
        assert sharded == off


def plan_outlives(rank, world):
    """Whether a plan is left behind by a forward that ended, and by one that failed."""
    from sglang.srt.layers.prefill_sp import active

    forward(STANDARD, BatchSpec((270,)), "sharded")
    ended = active()
    layer = build_model(STANDARD).layers[2]
    layer.mlp, real = None, layer.mlp
    try:
        forward(STANDARD, BatchSpec((270,)), "sharded")
    except TypeError:
        failed = active()
    finally:
        layer.mlp = real
    after = forward(STANDARD, BatchSpec((270,)), "exact").tensors()
    off = forward(STANDARD, BatchSpec((270,)), "off").tensors()
    return ended, failed, all(torch.equal(after[name], off[name]) for name in off)


def test_no_plan_outlives_its_forward():
    assert run_ranks(2, plan_outlives) == [(None, None, True)] * 2
