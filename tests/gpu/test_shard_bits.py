"""Promise: every per-row operation gives, on a shard, the bits that its rows have in the whole chunk.

Every kernel choice that depends on a row count reads the chunk's (`prefill_sp.chunk_rows`). Library GEMMs choose by the
shape they are called with; the engine compares them on the first chunk of every size instead.
"""

import pytest
import torch

from bench import rowlocal

ROWS = (16384, 8192, 4096, 2048, 1500, 128)
WORLDS = (2, 4, 8)
HYPER_CONNECTION = ("mix stats", "combine + norm", "post", "gate", "stream mean")
GEMMS = ("wkv", "wqkv_a")


@pytest.fixture(scope="module")
def operations():
    with torch.no_grad():
        yield rowlocal.operations()


def moved(a, b):
    """Per result: how many elements differ in bits."""
    return [int((x.view(torch.uint8) != y.view(torch.uint8)).sum()) for x, y in zip(a, b, strict=True)]


@torch.no_grad
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", HYPER_CONNECTION)
def test_a_shard_gets_the_chunk_s_bits(operations, name, rows, world):
    operation = operations[name]
    inputs = operation.inputs(rows)
    whole = operation.run(*inputs)
    assert all(torch.isfinite(t).all() for t in whole)
    assert moved(rowlocal.shard_results(operation, inputs, world, keyed=True), whole) == [0] * len(whole)


@torch.no_grad
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", GEMMS)
def test_gemms_are_compared_not_assumed(operations, name, rows, world, record_property):
    """No bit promise: the engine's self-check decides. What it would decide here is recorded, and the values agree."""
    operation = operations[name]
    inputs = operation.inputs(rows)
    (whole,) = operation.run(*inputs)
    (sharded,) = rowlocal.shard_results(operation, inputs, world, keyed=True)
    record_property("elements_moved", moved((sharded,), (whole,))[0])
    torch.testing.assert_close(sharded.float(), whole.float(), rtol=2**-7, atol=2**-7 * whole.float().abs().mean())


@torch.no_grad
def test_control_the_shard_s_row_count_would_change_bits(operations, capsys):
    """The rule matters: keyed on the shard, some operation at some size loses bits, and the table says which."""
    lost = {}
    for name in HYPER_CONNECTION:
        for rows in ROWS:
            inputs = operations[name].inputs(rows)
            whole = operations[name].run(*inputs)
            for world in WORLDS:
                if n := sum(moved(rowlocal.shard_results(operations[name], inputs, world, keyed=False), whole)):
                    lost[name, rows, world] = n
    with capsys.disabled():
        for (name, rows, world), n in lost.items():
            print(f"\nkeyed on the shard: {name} at {rows} rows over {world} ranks moves {n} bytes", end="")
    assert lost, "no operation depends on its row count here: the promise above tests nothing on this GPU"


@torch.no_grad
def test_one_ulp_in_one_row_is_seen(operations):
    operation = operations["combine + norm"]
    inputs = operation.inputs(4096)
    (whole,) = operation.run(*inputs)
    (sharded,) = rowlocal.shard_results(operation, inputs, 4, keyed=True)
    bits = sharded.view(torch.int16)
    bits[4095, 17] += 1
    assert moved((sharded,), (whole,)) == [1]
