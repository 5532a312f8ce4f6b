"""Promise: --enable-layernorm-sp is what it was: Qwen3's layers give the stock engine's bits by its collectives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from layernorm_sp_run import BATCHES, run
from ranks import run_ranks
from trees import python_path, stock_tree

WORLDS = (2, 4)


@pytest.fixture(scope="module")
def stock():
    script = [sys.executable, Path(__file__).with_name("layernorm_sp_run.py"), *map(str, WORLDS)]
    done = subprocess.run(script, env=python_path(stock_tree()), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("world", WORLDS)
def test_qwen3_under_layernorm_sp_is_stock(stock, world):
    ours = json.loads(json.dumps(run_ranks(world, run)))
    for rank, (theirs, mine) in enumerate(zip(stock[str(world)], ours, strict=True)):
        for name in BATCHES:
            assert mine[name] == theirs[name], f"rank {rank}, {name}"
            *_, active, moved = mine[name]
            assert active, "the layers did not run sequence-parallel"
            assert {operation for operation, *_ in moved} >= {"reduce_scatter_tensor", "all_gather_into_tensor"}
