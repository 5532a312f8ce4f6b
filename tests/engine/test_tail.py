"""Promise: the late layers' tail reaches every rank as a byte copy of its owners' rows, and the source layer sees every
row."""

from dataclasses import replace

import pytest
import torch
from agreement import WORLDS, results
from chunks import SHORT_TAIL, STANDARD
from model import BatchSpec, build_model, forward, late_layer_tail, make_batch
from ranks import collectives, device, run_ranks

TAILS = {
    "one request": ((401,), 8),
    "one request, whole": ((20,), 128),
    "many requests": ((101, 99, 100, 102), 8),
    "all on the last rank": ((377, 8, 8, 8), 8),
    "all on the first rank": ((8, 8, 8, 377), 1),
    "requests of one row": ((1,) * 9 + (300,), 4),
    "longer than a shard": ((200, 201), 128),
    "every row": ((50, 51, 52), 128),
}


def any_bytes(rows: int, *shape: int) -> torch.Tensor:
    """bf16 of every bit pattern: NaNs with payloads, infinities, negative zeros, subnormals."""
    generator = torch.Generator().manual_seed(rows)
    bits = torch.randint(-(2**15), 2**15, (rows, *shape), generator=generator, dtype=torch.int16)
    return bits.view(torch.bfloat16).to(device())


def moved(rank, world, lens, tail_rows, pad_rows):
    """(tail by the plan's move, tail of the whole rows, rows that each gather sent), as raw bits."""
    import msgspec
    from sglang.srt.layers.prefill_sp import PrefillSp
    from sglang.srt.layers.row_shards import RowShards, shard_rows
    from sglang.srt.runtime_context import get_parallel

    build_model(STANDARD)
    batch = make_batch(BatchSpec(lens))
    batch.out_cache_loc = torch.arange(sum(lens))
    tail = msgspec.structs.replace(late_layer_tail(batch, tail_rows, dspark=False), pad_rows=pad_rows)
    whole = any_bytes(sum(lens), 4, 16)
    shards = RowShards.of(sum(lens), get_parallel().attn_tp_group)
    with collectives() as sent:
        rows = PrefillSp(shards, True).tail_rows(tail)(shard_rows(whole, shards))
    return rows.view(torch.int16), tail.rows(whole).view(torch.int16), [count for _, count, _ in sent], shards.shard


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("pad_rows", (0, 3))
def test_the_tail_is_a_byte_copy(world, name, pad_rows):
    lens, tail_rows = TAILS[name]
    count = sum(min(tail_rows, n) for n in lens)
    for rows, expected, sent, shard in run_ranks(world, moved, lens, tail_rows, pad_rows):
        assert torch.equal(rows, expected)
        # The candidates of every rank, unless that is no less than everything.
        assert sent == [min(count, shard)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mode", ("transport", "sharded", "exact"))
def test_the_source_layer_sees_every_row_and_the_late_layers_the_tail(world, mode):
    lens = (150, 121, 60)
    assert run_ranks(world, rows_seen, replace(SHORT_TAIL, layers=6), BatchSpec(lens), mode) == [True] * world


def rows_seen(rank, world, spec, batch, mode):
    output = forward(spec, batch, mode)
    tail = len(batch.lens) * spec.tail_rows
    by_layer: dict[int, set[int]] = {}
    for what, layer, rows in output.calls:
        if what in ("keys", "attention"):
            by_layer.setdefault(layer, set()).add(rows)
    assert output.source_x.shape[0] == batch.rows
    assert by_layer == {layer: {batch.rows if layer < 4 else tail} for layer in range(spec.layers)}, by_layer
    compressed = [(layer, rows) for what, layer, rows in output.calls if what == "sources"]
    assert compressed == [(0, batch.rows), (4, batch.rows), (4, tail)], compressed
    return True


@pytest.mark.parametrize("world", WORLDS)
def test_a_short_tail_moves_the_tail_rows_only(world):
    """R is 4 streams wide; what moves of it is what the tail needs, once."""
    batch = BatchSpec((401,))
    for result in results(world, SHORT_TAIL, batch):
        stream_bytes = 4 * SHORT_TAIL.hidden * 2
        residual = [rows for _, rows, row_bytes in result["sharded"][2] if row_bytes == stream_bytes]
        assert residual == [SHORT_TAIL.tail_rows]
