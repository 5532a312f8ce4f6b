"""The rows of a chunk over a group: every row has one owner, and every move keeps its bits."""

import pytest
import torch
from ranks import device, run_ranks

ROWS = (1, 3, 8, 10, 257)


def seeded(seed: int, *shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen).to(dtype).to(device())


def group():
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().tp_group


def ownership(rank, world, rows):
    from sglang.srt.layers.row_shards import RowShards

    shards = RowShards.of(rows, group())
    return shards.lo, shards.hi, shards.shard, shards.padding


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("rows", ROWS)
def test_every_row_has_one_owner(world, rows):
    plans = run_ranks(world, ownership, rows)
    owned = [row for lo, hi, _, _ in plans for row in range(lo, hi)]
    assert owned == list(range(rows))
    assert {(shard, padding) for _, _, shard, padding in plans} == {
        (-(-rows // world), -(-rows // world) * world - rows)
    }


def shard_and_gather(rank, world, rows):
    from sglang.srt.layers.row_shards import RowShards, gather_rows, shard_rows

    whole = seeded(1, rows, 4, 16)
    shards = RowShards.of(rows, group())
    own = shard_rows(whole, shards)
    assert torch.equal(own[: shards.hi - shards.lo], whole[shards.lo : shards.hi])
    assert own.shape[0] == shards.shard
    assert not own[shards.hi - shards.lo :].any(), "padding must be zero"
    return torch.equal(gather_rows(own, shards, group()), whole)


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("rows", ROWS)
def test_gather_undoes_shard(world, rows):
    assert all(run_ranks(world, shard_and_gather, rows))


def reduced(rank, world, rows, order):
    """This rank's rows of the sum of every rank's partial, and the references."""
    from sglang.srt.layers.row_shards import RowShards, SumOrder, reduce_scatter_rows

    parts = [seeded(100 + r, rows, 32) for r in range(world)]
    shards = RowShards.of(rows, group(), SumOrder[order])
    own = reduce_scatter_rows(parts[rank].clone(), shards, group())
    assert own.shape[0] == shards.shard
    real = shards.hi - shards.lo
    assert not own[real:].any(), "padding must stay zero"
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    in_rank_order = total.to(torch.bfloat16)[shards.lo : shards.hi]
    all_reduced = group().all_reduce(parts[rank].clone())[shards.lo : shards.hi]
    exact = torch.stack(parts).double().sum(0)[shards.lo : shards.hi]
    return (
        torch.equal(own[:real], all_reduced),
        torch.equal(own[:real], in_rank_order),
        (own[:real].double() - exact).abs().max().item() if real else 0.0,
        exact.abs().max().item() if real else 0.0,
    )


@pytest.mark.parametrize("rows", ROWS)
def test_two_terms_have_one_order(rows):
    """At W = 2 the reduce-scatter has the all-reduce's bits."""
    assert all(same for same, *_ in run_ranks(2, reduced, rows, "NATIVE"))


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("rows", ROWS)
def test_exact_form_is_the_all_reduce(world, rows):
    assert all(same for same, *_ in run_ranks(world, reduced, rows, "ALL_REDUCE"))


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("rows", ROWS)
def test_ordered_form_adds_in_rank_order(world, rows):
    assert all(same for _, same, *_ in run_ranks(world, reduced, rows, "RANK"))


@pytest.mark.parametrize("world", (3, 4, 8))
def test_native_form_is_the_sum(world):
    """From W = 3 the order is the collective's: a bound against float64, one rounding of
    at most 2**-8 for each of the world - 1 additions."""
    for _, _, error, largest in run_ranks(world, reduced, 257, "NATIVE"):
        assert error <= (world - 1) * 2**-8 * largest


def selected(rank, world, rows, indices):
    from sglang.srt.layers.row_shards import (
        RowShards,
        gather_selected_rows,
        shard_rows,
    )

    whole = seeded(2, rows, 3, 8, dtype=torch.float32)
    shards = RowShards.of(rows, group())
    wanted = torch.tensor(indices, device=device())
    got = gather_selected_rows(shard_rows(whole, shards), wanted, shards, group())
    return torch.equal(got, whole[wanted])


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("indices", ([256], [0, 256], list(range(200, 257)), list(range(257)), [5, 4, 130]))
def test_selected_rows_are_a_copy_of_their_owners(world, indices):
    assert all(run_ranks(world, selected, 257, indices))


def refusals(rank, world):
    from sglang.srt.layers.row_shards import RowShards, gather_rows, shard_rows

    def message(call):
        with pytest.raises(ValueError) as caught:
            call()
        return str(caught.value)

    shards = RowShards(10, world, rank)
    return (
        message(lambda: RowShards(0, world, rank)),
        message(lambda: RowShards(10, world, world)),
        message(lambda: shard_rows(seeded(3, 11, 2), shards)),
        message(lambda: gather_rows(seeded(3, 10, 2), shards, group())),
    )


def test_wrong_rows_are_refused():
    no_rows, outside, too_many, not_a_shard = run_ranks(2, refusals)[0]
    assert "at least one row" in no_rows
    assert "outside a group of 2" in outside
    assert "11 rows, its plan says 10" in too_many
    assert "10 rows, its plan says 5" in not_a_shard
