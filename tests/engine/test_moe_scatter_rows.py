"""The MoE hands out its sum on the rank's rows, and is unchanged without being asked."""

import pytest
import torch
from model import ModelSpec, build_model, configured, machine
from ranks import device, run_ranks

SPEC = ModelSpec(mode=None)


def block(rank):
    mlp = build_model(SPEC).layers[0].mlp
    return mlp, mlp.config.hidden_size


def rows_in(rows, hidden):
    gen = torch.Generator().manual_seed(rows)
    return torch.randn(rows, hidden, generator=gen).to(torch.bfloat16).to(device())


def scattered(rank, world, rows, order):
    from sglang.srt.layers.row_shards import RowShards, SumOrder
    from sglang.srt.runtime_context import get_parallel

    with machine(SPEC, SPEC.mode):
        mlp, hidden = block(rank)
        x = rows_in(rows, hidden)
        group = get_parallel().tp_group
        shards = RowShards.of(rows, group, SumOrder[order])
        own = mlp(x.clone(), scatter_rows=shards)
        partial = mlp(x.clone(), leave_output_sum=True).get_merged()
    assert own.shape == (shards.shard, hidden)
    real = shards.hi - shards.lo
    assert not own[real:].any(), "padding must stay zero"
    parts = [torch.empty_like(partial) for _ in range(world)]
    torch.distributed.all_gather(parts, partial, group=group.device_group)
    assert not any(torch.equal(parts[0], other) for other in parts[1:])
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    mine = slice(shards.lo, shards.hi)
    summed = group.all_reduce(partial.clone())[mine]
    return (
        torch.equal(own[:real], summed),
        torch.equal(own[:real], total.to(partial.dtype)[mine]),
    )


@pytest.mark.parametrize("rows", (1, 33, 64))
def test_two_ranks_give_the_all_reduces_rows(rows):
    assert all(same for same, _ in run_ranks(2, scattered, rows, "NATIVE"))


@pytest.mark.parametrize("world", (2, 3, 4, 8))
def test_exact_form_gives_the_all_reduces_rows(world):
    assert all(same for same, _ in run_ranks(world, scattered, 33, "ALL_REDUCE"))


@pytest.mark.parametrize("world", (3, 8))
def test_ordered_form_adds_in_rank_order(world):
    assert all(same for _, same in run_ranks(world, scattered, 33, "RANK"))


def refused(rank, world):
    from sglang.srt.layers.row_shards import RowShards

    with machine(SPEC, SPEC.mode):
        mlp, hidden = block(rank)
        x = rows_in(8, hidden)
        messages = []
        for kwargs, attribute in (
            ({"leave_output_sum": True}, None),
            ({"return_moe_output": True}, None),
            ({}, "_shared_expert_tp1"),
            ({}, "_enable_a2a_moe"),
        ):
            if attribute is not None:
                setattr(mlp, attribute, True)
            try:
                with pytest.raises(ValueError) as caught:
                    mlp(x.clone(), scatter_rows=RowShards(8, world, rank), **kwargs)
            finally:
                if attribute is not None:
                    setattr(mlp, attribute, False)
            messages.append(str(caught.value))
    return messages


def test_sums_that_would_be_lost_or_repeated_are_refused():
    for message in run_ranks(2, refused)[0]:
        assert "completes the MoE's sum on the rank's rows" in message


def quantized_sum(rank, world):
    from sglang.srt.layers.row_shards import RowShards

    with machine(SPEC, SPEC.mode), configured(enable_quant_communications=True):
        mlp, hidden = block(rank)
        with pytest.raises(ValueError) as caught:
            mlp(rows_in(8, hidden), scatter_rows=RowShards(8, world, rank))
    return str(caught.value)


def test_another_sum_than_one_full_precision_one_is_refused():
    assert "one full-precision sum over the TP group" in run_ranks(2, quantized_sum)[0]
