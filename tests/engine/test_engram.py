"""Promise: the Engram of a shard has the bits of the whole chunk's, whoever can look up what."""

from contextlib import ExitStack, nullcontext
from unittest.mock import patch

import cpu_kernels
import pytest
import torch
from agreement import WORLDS, digest
from chunks import STANDARD
from model import BatchSpec, build_model, environment, forward
from ranks import collectives, run_ranks

BATCH = BatchSpec((150, 121))
ROWS = BATCH.rows


def digests(mode, batch=BATCH):
    return {name: digest(value) for name, value in forward(STANDARD, batch, mode).tensors().items()}


def fresh_checks() -> None:
    """Forget every self-check of the model, as a new process has none."""
    model = build_model(STANDARD)
    for layer in model.layers:
        layer.wqkv_a_check.__init__(layer.wqkv_a_check.what, layer.wqkv_a_check.first_sighting)
    check = model.layers[1].engram._wkv_check
    check.__init__(check.what)


def odd_tactic(rank, world, odd_ranks, variables):
    """Modes' digests, and the Engram's verdict, where the shard's GEMM rounds otherwise on some ranks."""
    shard = -(-ROWS // world)
    fresh_checks()
    # A size that agrees comes first: its verdict is not this one's.
    forward(STANDARD, BatchSpec((ROWS + 2 * world,)), "exact")
    with ExitStack() as stack:
        stack.enter_context(environment(**variables))
        stack.enter_context(cpu_kernels.odd_gemm(shard) if rank in odd_ranks else nullcontext())
        cpu_kernels.launches()
        # Twice each: a projection may be checked only when its size comes again.
        results = [digests(mode) for mode in ("off", "exact", "exact", "transport", "sharded", "sharded")]
        verdict = build_model(STANDARD).layers[1].engram._wkv_check.equal.get(ROWS)
        odd = [facts for facts in cpu_kernels.launches() if facts[0] == "gemm"]
    fresh_checks()
    return results, verdict, odd


def assert_equal_bits(by_rank) -> None:
    for (off, exact, exact_again, transport, sharded, sharded_again), _, _ in by_rank:
        assert off == exact == exact_again
        assert transport == sharded == sharded_again


@pytest.mark.parametrize("world", WORLDS)
def test_a_shard_gemm_that_agrees_is_used(world):
    by_rank = run_ranks(world, odd_tactic, (), {})
    assert_equal_bits(by_rank)
    assert [verdict for _, verdict, _ in by_rank] == [True] * world


@pytest.mark.parametrize("world", WORLDS)
def test_one_rank_that_disagrees_keeps_every_rank_on_the_whole_gemm(world):
    by_rank = run_ranks(world, odd_tactic, (world - 1,), {})
    assert_equal_bits(by_rank)
    assert [verdict for _, verdict, _ in by_rank] == [False] * world
    assert by_rank[world - 1][2], "the shard's GEMM was not even tried"


@pytest.mark.parametrize("world", WORLDS)
def test_full_never_runs_wkv_on_a_shard(world):
    variables = dict(SGLANG_PREFILL_SP_ENGRAM_WKV="full", SGLANG_PREFILL_SP_PROJECT_FIRST="0")
    by_rank = run_ranks(world, odd_tactic, tuple(range(world)), variables)
    assert_equal_bits(by_rank)
    wkv_columns = 5 * STANDARD.hidden
    assert not [facts for _, _, odd in by_rank for facts in odd if facts[2] == wkv_columns]


class ReadableTable:
    """A table whose every row this rank can read: what peer-mapped shards are on a GPU."""

    ready = True

    def __init__(self, embed):
        from sglang.srt.runtime_context import get_parallel

        group = get_parallel().tp_group
        self.weight, self.scale = (
            torch.cat(group.all_gather_object(tensor.data.view(torch.uint8).cpu())).view(tensor.dtype)
            for tensor in (embed.weight, embed.scale)
        )
        self.looked_up: list[int] = []

    def lookup(self, indices):
        self.looked_up.append(indices.shape[0])
        return dequantized(self.weight[indices], self.scale[indices])


def dequantized(rows, scales):
    """fp8 [..., dim] and e8m0 [..., dim / 32] -> bf16, as the table's own lookup does it."""
    values = rows.float().unflatten(-1, (scales.shape[-1], -1)) * scales.float().unsqueeze(-1)
    return values.flatten(-2).to(torch.bfloat16)


def readable(rank, world):
    """Digests with the plain table and with one that every rank reads; rows looked up; Engram collectives."""
    embed = build_model(STANDARD).layers[1].engram.embed
    plain = {mode: digests(mode) for mode in ("off", "sharded")}
    table = ReadableTable(embed)
    results, looked_up, moved = {}, {}, {}
    with patch.object(embed, "peer", table):
        for mode in ("off", "transport", "sharded", "exact"):
            table.looked_up.clear()
            with collectives() as seen:
                results[mode] = digests(mode)
            looked_up[mode] = list(table.looked_up)
            moved[mode] = [move for move in seen if move[2] == 24 * 32 * 2]
    return plain, results, looked_up, moved


@pytest.mark.parametrize("world", WORLDS)
def test_rows_that_every_rank_can_read_are_looked_up_by_their_owner_alone(world):
    shard = -(-ROWS // world)
    for rank, (plain, results, looked_up, moved) in enumerate(run_ranks(world, readable)):
        assert results["off"] == plain["off"] == results["exact"]
        assert results["sharded"] == plain["sharded"] == results["transport"]
        own = min(ROWS, (rank + 1) * shard) - min(ROWS, rank * shard)
        assert looked_up == {"off": [ROWS], "transport": [ROWS], "sharded": [own], "exact": [own]}
        assert not any(moved.values()), "a lookup that needs no collective had one"


def staged(rank, world):
    """Digests with the plain table and with rows that the scheduler staged, and how many were dequantized."""
    from sglang.srt.layers.engram import EngramEmbedding

    model = build_model(STANDARD)
    table = ReadableTable(model.layers[1].engram.embed)
    plain = {mode: digests(mode) for mode in ("off", "sharded")}
    counts = []

    def hand_over(hasher, inputs, hash_ids):
        # The scheduler stages a batch's rows in its own order: token, then column.
        indices = hash_ids[:, 0].reshape(-1)
        batch = inputs[1]
        batch.engram_staged_rows = [(table.weight[indices], table.scale[indices], None)]

    def dequant_staged(self, rows, scales, copied, hash_shape):
        counts.append(rows.shape[0])
        out = torch.zeros(hash_shape.numel(), self.dim, dtype=torch.bfloat16, device=rows.device)
        out[: rows.shape[0]] = dequantized(rows, scales)
        return out.view(*hash_shape, self.dim)

    hook = model.engram_hasher.register_forward_hook(hand_over)
    try:
        with patch.object(EngramEmbedding, "dequant_staged", dequant_staged):
            results = {}
            for mode in ("off", "transport", "sharded", "exact"):
                counts.clear()
                results[mode] = digests(mode), list(counts)
    finally:
        hook.remove()
    return plain, results


@pytest.mark.parametrize("world", WORLDS)
def test_staged_rows_are_dequantized_by_their_owner_alone(world):
    columns, shard = 24, -(-ROWS // world)
    for rank, (plain, results) in enumerate(run_ranks(world, staged)):
        own = min(ROWS, (rank + 1) * shard) - min(ROWS, rank * shard)
        assert results["off"] == (plain["off"], [ROWS * columns])
        assert results["exact"] == (plain["off"], [own * columns])
        assert results["transport"] == (plain["sharded"], [ROWS * columns])
        assert results["sharded"] == (plain["sharded"], [own * columns])
