"""Promise: a chunk's plan follows from facts that every rank shares: the same on all of them but for the rank."""

import pytest
import torch
from model import BatchSpec, configured, make_batch
from ranks import device, run_ranks

MODES = {"off": None, "transport": False, "sharded": True, "exact": True}


def planned(rank, world, mode, rows, min_tokens):
    """(rows, world, rank, sum order, whether the residual is sharded) of the plan, or None."""
    from sglang.srt.layers.prefill_sp import plan_chunk

    hidden = torch.zeros(rows, 64, dtype=torch.bfloat16, device=device())
    with configured(prefill_sp_mode=mode, prefill_sp_min_tokens=min_tokens):
        plan = plan_chunk(make_batch(BatchSpec((rows,))), hidden)
    if plan is None:
        return None
    shards = plan.shards
    return shards.rows, shards.world, shards.rank, shards.order.name, plan.shards_residual


@pytest.mark.parametrize("world", (1, 2, 3))
@pytest.mark.parametrize("mode", MODES)
def test_plans_agree_over_the_ranks(world, mode):
    plans = run_ranks(world, planned, mode, 301, 300)
    if mode == "off" or world == 1:
        assert plans == [None] * world
        return
    order = "ALL_REDUCE" if mode == "exact" else "NATIVE"
    assert plans == [(301, world, rank, order, MODES[mode]) for rank in range(world)]
    assert run_ranks(world, planned, mode, 299, 300) == [None] * world


def refused_rows(rank, world):
    from sglang.srt.layers.prefill_sp import PrefillSp, chunk_rows
    from sglang.srt.layers.row_shards import RowShards
    from sglang.srt.runtime_context import get_forward

    seen = [chunk_rows(77)]
    with get_forward().scoped(prefill_sp=PrefillSp(RowShards(301, world, rank), False)):
        seen.append(chunk_rows(77))
    with get_forward().scoped(prefill_sp=PrefillSp(RowShards(301, world, rank), True)):
        seen.append(chunk_rows(151))
        with pytest.raises(ValueError, match="301 rows reached .* sharded into 151 rows"):
            chunk_rows(301)
    return seen


def test_a_choice_by_row_count_reads_the_chunks_rows():
    assert run_ranks(2, refused_rows) == [[77, 77, 301]] * 2
