"""Promise: --prefill-sp-mode exact has the bits of off, at any world size, for any chunk."""

import pytest
from agreement import WORLDS, assert_entered, assert_ranks_agree, assert_same, results
from chunks import chunks

CASES = [(world, name) for world in WORLDS for name in chunks(world)]


@pytest.mark.parametrize(("world", "name"), CASES)
def test_exact_equals_off(world, name):
    by_rank = results(world, *chunks(world)[name])
    assert_entered(by_rank, "exact")
    assert_same(by_rank, "exact", "off")
    assert_ranks_agree(by_rank, "off")
