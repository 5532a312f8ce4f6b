"""`RowParallelLinear` hands out its sum on the rank's rows, and is unchanged without being asked."""

import pytest
import torch
from ranks import device, run_ranks

IN, OUT = 48, 40


def build(bias: bool = False, reduce_results: bool = False):
    from sglang.srt.layers.linear import RowParallelLinear

    layer = RowParallelLinear(
        IN,
        OUT,
        bias=bias,
        reduce_results=reduce_results,
        params_dtype=torch.bfloat16,
        parallel_group="attn_tp",
    ).to(device())
    rank = layer.tp_group.rank_in_group
    gen = torch.Generator().manual_seed(10 + rank)
    layer.weight.data.copy_(torch.randn(layer.weight.shape, generator=gen))
    if bias:
        layer.bias.data.copy_(torch.randn(OUT, generator=torch.Generator().manual_seed(9)))
    return layer


def own_input(rank, rows):
    gen = torch.Generator().manual_seed(50 + rank)

    from sglang.srt.runtime_context import get_parallel

    width = IN // get_parallel().tp_size
    return torch.randn(rows, width, generator=gen).to(torch.bfloat16).to(device())


def scattered(rank, world, rows, order, bias):
    from sglang.srt.layers.row_shards import RowShards, SumOrder

    layer = build(bias)
    x = own_input(rank, rows)
    shards = RowShards.of(rows, layer.tp_group, SumOrder[order])
    own, own_bias = layer(x, scatter_rows=shards)
    assert own_bias is None and own.shape == (shards.shard, OUT)
    real = shards.hi - shards.lo
    assert not own[real:].any()
    partial, _ = layer(x, skip_all_reduce=True)
    parts = [torch.empty_like(partial) for _ in range(world)]
    torch.distributed.all_gather(parts, partial, group=layer.tp_group.device_group)
    assert not any(torch.equal(parts[0], other) for other in parts[1:]), "equal partials would hide a doubled sum"
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    summed = layer.tp_group.all_reduce(partial.clone())
    mine = slice(shards.lo, shards.hi)
    return (
        torch.equal(own[:real], summed[mine]),
        torch.equal(own[:real], total.to(torch.bfloat16)[mine]),
    )


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("rows", (1, 5, 64, 67))
def test_two_ranks_give_the_all_reduces_rows(rows, bias):
    assert all(same for same, _ in run_ranks(2, scattered, rows, "NATIVE", bias))


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("rows", (1, 64, 67))
def test_exact_form_gives_the_all_reduces_rows(world, rows):
    assert all(same for same, _ in run_ranks(world, scattered, rows, "ALL_REDUCE", True))


@pytest.mark.parametrize("world", (2, 3, 4, 8))
@pytest.mark.parametrize("rows", (1, 64, 67))
def test_ordered_form_adds_in_rank_order(world, rows):
    assert all(same for _, same in run_ranks(world, scattered, rows, "RANK", False))


def unasked(rank, world, rows):
    """Today's two paths, beside the GEMM and the all-reduce themselves."""
    layer, reducing = build(), build(reduce_results=True)
    x = own_input(rank, rows)
    partial = torch.nn.functional.linear(x, layer.weight)
    left, _ = layer(x)
    summed, _ = reducing(x)
    return (
        torch.equal(left, partial),
        torch.equal(summed, layer.tp_group.all_reduce(partial.clone())),
    )


@pytest.mark.parametrize("world", (2, 3, 8))
def test_existing_paths_are_unchanged(world):
    assert all(all(same) for same in run_ranks(world, unasked, 37))


def refused(rank, world):
    from sglang.srt.layers.row_shards import RowShards
    from sglang.srt.runtime_context import get_forward

    layer = build()
    x = own_input(rank, 8)
    messages = []
    for shards, kwargs in (
        (RowShards(8, world, rank), {"skip_all_reduce": True}),
        (RowShards(8, world + 1, rank), {}),
        (RowShards(9, world, rank), {}),
    ):
        with pytest.raises(ValueError) as caught:
            layer(x, scatter_rows=shards, **kwargs)
        messages.append(str(caught.value))
    with get_forward().scoped(sp_active=True), pytest.raises(ValueError) as caught:
        layer(x, scatter_rows=RowShards(8, world, rank))
    return [*messages, str(caught.value)]


def test_sums_that_would_be_lost_or_repeated_are_refused():
    skipped, other_group, other_rows, layernorm = run_ranks(2, refused)[1]
    assert "skip_all_reduce" in skipped
    assert "rank 1 of 3" in other_group and "rank 1 of 2" in other_group
    assert "8 rows, its plan says 9" in other_rows
    assert "LayerNorm sequence parallelism" in layernorm
