"""Promise: with the ordered reduce a row's bits depend on neither the rank that owns it nor the chunk around it."""

import pytest
import torch
from agreement import WORLDS, assert_entered, assert_same, results
from chunks import STANDARD, chunks
from model import BatchSpec, environment, forward
from ranks import collectives, run_ranks

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


@pytest.mark.parametrize("world", WORLDS)
def test_a_row_does_not_depend_on_its_owner_or_its_chunk(world):
    for equal, exchanges in run_ranks(world, in_two_chunks, dict(ORDERED)):
        assert equal
        # Two chunks of four layers, each with attention, experts and one Engram.
        assert exchanges == 2 * (4 * 2 + 1)


@pytest.mark.parametrize("world", (3, 4, 8))
def test_control_the_native_reduce_depends_on_them(world):
    assert not any(equal for equal, _ in run_ranks(world, in_two_chunks, {}))
