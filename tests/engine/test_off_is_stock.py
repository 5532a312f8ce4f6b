"""Promise: off is the stock engine: the same bits from the same kernels and the same collectives. So is everything that
upstream runs under its own LayerNorm sequence parallelism."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from stock_run import BATCHES, everything
from trees import python_path, stock_tree

WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def stock():
    """{world: what its ranks did} of the stock tree."""
    script = [sys.executable, Path(__file__).with_name("stock_run.py"), *map(str, WORLDS)]
    done = subprocess.run(script, env=python_path(stock_tree()), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return {int(world): found for world, found in json.loads(done.stdout).items()}


ours = cache(lambda world: everything(world, "off"))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", BATCHES)
def test_off_is_stock(stock, world, name):
    pairs = zip(stock[world]["V4.1"], ours(world)["V4.1"], strict=True)
    for rank, (theirs, mine) in enumerate(pairs):
        for what, expected, got in zip(("bits", "kernels", "collectives"), theirs[name], mine[name], strict=True):
            assert got == expected, f"rank {rank}: {what} of off are not those of the stock engine"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ("Qwen3", "Qwen3 under LayerNorm SP"))
def test_layernorm_sp_is_unchanged(stock, world, name):
    assert ours(world)[name] == stock[world][name]


@pytest.mark.parametrize("world", (2, 4))
def test_control_layernorm_sp_runs(world):
    for moved in (moved for rank in ours(world)["Qwen3 under LayerNorm SP"] for _, moved in rank):
        assert {"reduce_scatter_tensor", "all_gather_into_tensor"} <= {operation for operation, _, _ in moved}
