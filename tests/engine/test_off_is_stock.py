"""Promise: off is the stock engine: the same bits from the same kernels and the same collectives."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from ranks import run_ranks
from stock_run import BATCHES, run
from trees import python_path, stock_tree

WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def stock():
    """{world: {batch: what each rank did}} of the stock tree."""
    script = [sys.executable, Path(__file__).with_name("stock_run.py"), *map(str, WORLDS)]
    done = subprocess.run(script, env=python_path(stock_tree()), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


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
