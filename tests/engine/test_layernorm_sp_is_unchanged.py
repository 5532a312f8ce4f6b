"""Promise: --enable-layernorm-sp is what it was: Qwen3's layers give the stock engine's bits by its collectives."""

import json

import pytest
from layernorm_sp_run import BATCHES, run
from ranks import run_ranks
from trees import on_stock

WORLDS = (2, 4)


@pytest.fixture(scope="module")
def stock():
    return on_stock("layernorm_sp_run.py", *WORLDS)


@pytest.mark.parametrize("world", WORLDS)
def test_qwen3_under_layernorm_sp_is_stock(stock, world):
    ours = json.loads(json.dumps(run_ranks(world, run)))
    for rank, (theirs, mine) in enumerate(zip(stock[str(world)], ours, strict=True)):
        for name in BATCHES:
            assert mine[name] == theirs[name], f"rank {rank}, {name}"
            *_, active, moved = mine[name]
            assert active, "the layers did not run sequence-parallel"
            assert {operation for operation, *_ in moved} >= {"reduce_scatter_tensor", "all_gather_into_tensor"}
