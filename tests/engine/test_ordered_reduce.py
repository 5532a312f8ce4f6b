"""Promise: with the ordered reduce a row's bits depend on neither the rank that owns it nor the chunk around it."""

import pytest
import torch
from agreement import WORLDS, assert_entered, assert_same, results
from chunks import STANDARD, chunks
from model import BatchSpec, environment, forward
from ranks import collectives, device, run_ranks

ORDERED = (("SGLANG_PREFILL_SP_ORDERED_REDUCE", "1"),)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ("many requests", "no tail", "264+1 rows"))
def test_sharded_equals_transport(world, name):
    by_rank = results(world, *chunks(world)[name], ("off", "transport", "sharded"), ORDERED)
    assert_entered(by_rank, "sharded")
    assert_same(by_rank, "sharded", "transport")
    if world == 2:
        assert_same(by_rank, "sharded", "off")


def in_two_chunks(rank, world, variables):
    """The source layer's input of one request alone and behind another, and the exchanges that summed it."""
    with environment(**variables), collectives() as moved:
        alone = forward(STANDARD, BatchSpec((150,), requests=(3,)), "sharded").source_x
        behind = forward(STANDARD, BatchSpec((121, 150), requests=(5, 3)), "sharded").source_x[121:]
    return torch.equal(alone, behind), sum(operation == "all_to_all_single" for operation, _, _ in moved)


def cancelling(rank, world):
    """Sums of terms that only one order adds up to 1: [rows this rank owns]."""
    from sglang.srt.layers.row_shards import RowShards, SumOrder, reduce_scatter_rows
    from sglang.srt.runtime_context import get_parallel

    # In fp32 2^30 swallows a 1 that is added to it.
    terms = [2.0**30, -(2.0**30), 1.0] + [0.0] * world
    group = get_parallel().tp_group
    partial = torch.full((world + 1, 8), terms[rank], dtype=torch.bfloat16, device=device())
    shards = RowShards.of(world + 1, group, SumOrder.RANK)
    return reduce_scatter_rows(partial, shards, group)[: shards.hi - shards.lo]


@pytest.mark.parametrize("world", (3, 4, 8))
def test_the_order_is_the_ranks(world):
    for owner, rows in enumerate(run_ranks(world, cancelling)):
        assert torch.equal(rows, torch.ones_like(rows)), f"rank {owner}'s rows are summed in another order"


@pytest.mark.parametrize("world", WORLDS)
def test_a_row_does_not_depend_on_its_owner_or_its_chunk(world):
    for equal, exchanges in run_ranks(world, in_two_chunks, dict(ORDERED)):
        assert equal
        # Two chunks of four layers, each with attention, experts and one Engram.
        assert exchanges == 2 * (4 * 2 + 1)


@pytest.mark.parametrize("world", (3, 4, 8))
def test_control_the_native_reduce_depends_on_them(world):
    assert not any(equal for equal, _ in run_ranks(world, in_two_chunks, {}))
