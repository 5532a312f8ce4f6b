"""Promise: off is the stock engine: the same bits from the same kernels and the same collectives."""

import json
from functools import cache

import pytest
from ranks import run_ranks
from stock_run import BATCHES, run
from trees import on_stock

WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def stock():
    """{world: {batch: what each rank did}} of the stock tree."""
    return on_stock("stock_run.py", *WORLDS)


@cache
def ours(world):
    return json.loads(json.dumps(run_ranks(world, run, "off")))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", BATCHES)
def test_off_is_stock(stock, world, name):
    pairs = zip(stock[str(world)], ours(world), strict=True)
    for rank, (theirs, mine) in enumerate(pairs):
        for what, expected, got in zip(("bits", "kernels", "collectives"), theirs[name], mine[name], strict=True):
            assert got == expected, f"rank {rank}: {what} of off are not those of the stock engine"
