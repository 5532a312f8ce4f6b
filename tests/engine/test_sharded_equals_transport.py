"""Promise: sharded has the bits of transport, its numeric reference, at any world size, for any chunk."""

import pytest
from agreement import WORLDS, assert_entered, assert_ranks_agree, assert_same, results
from chunks import chunks

CASES = [(world, name) for world in WORLDS for name in chunks(world)]


@pytest.mark.parametrize(("world", "name"), CASES)
def test_sharded_equals_transport(world, name):
    by_rank = results(world, *chunks(world)[name])
    assert_entered(by_rank, "sharded")
    assert_entered(by_rank, "transport")
    assert_same(by_rank, "sharded", "transport")
    assert_ranks_agree(by_rank, "sharded")


@pytest.mark.parametrize("world", (3, 4, 8))
def test_control_sharded_sums_in_its_own_order(world):
    """From three ranks on sharded differs from off: exact's equality is not an accident of the weights."""
    by_rank = results(world, *chunks(world)["many requests"])
    with pytest.raises(AssertionError, match="sharded != off"):
        assert_same(by_rank, "sharded", "off")
