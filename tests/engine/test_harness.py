"""Promise: the harness can fail: its ranks differ where they should, and a fault in one shows every rank."""

import os
import time

import pytest
import torch
from agreement import digest
from chunks import STANDARD
from model import BatchSpec, build_model, forward, token_ids
from ranks import RanksFailed, run_ranks

WORLDS = (1, 2, 3, 4, 8)


def twice(rank, world):
    batch = BatchSpec((200, 50, 130))
    first, second = (forward(STANDARD, batch).tensors() for _ in range(2))
    assert all(bool(torch.isfinite(value.float()).all()) for value in first.values())
    assert first["hidden"].float().std() > 0.1, "a dead model compares equal to anything"
    assert {name: digest(value) for name, value in first.items()} == {n: digest(v) for n, v in second.items()}
    return {name: digest(value) for name, value in first.items()}


@pytest.mark.parametrize("world", WORLDS)
def test_off_is_deterministic_and_the_same_on_every_rank(world):
    first, *others = run_ranks(world, twice)
    assert all(other == first for other in others)


def weights(rank, world):
    layer = build_model(STANDARD).layers[1]
    whole = (layer.self_attn.wqkv_a, layer.engram.wkv, layer.mlp.gate, layer.input_layernorm)
    parts = (layer.self_attn.wo_b, layer.self_attn.wq_b, layer.mlp.shared_experts.down_proj, layer.engram.embed)
    shards = [digest(module.weight) for module in parts] + [digest(layer.mlp.experts.w2_weight)]
    return [digest(module.weight) for module in whole], shards


def test_shards_differ_by_rank_and_whole_weights_do_not():
    by_rank = run_ranks(4, weights)
    for whole, _ in by_rank:
        assert whole == by_rank[0][0]
    for position in range(len(by_rank[0][1])):
        assert len({shards[position] for _, shards in by_rank}) == 4, "equal partials would hide a doubled sum"


def test_token_ids_do_not_depend_on_the_chunking():
    whole = token_ids(0, 3, 0, 500)
    assert torch.equal(torch.cat([token_ids(0, 3, 0, 137), token_ids(0, 3, 137, 363)]), whole)
    assert len(whole.unique()) > 200


def one_raises(rank, world):
    from sglang.srt.runtime_context import get_parallel

    if rank == 1:
        raise ValueError("this rank is at fault")
    get_parallel().tp_group.all_reduce(torch.ones(3))


def test_a_failure_shows_every_rank():
    with pytest.raises(RanksFailed) as failure:
        run_ranks(3, one_raises)
    report = str(failure.value)
    assert "this rank is at fault" in report and "rank 1 raised" in report
    assert report.count("hung; it was here") == 2 and report.count("all_reduce") >= 2
    assert run_ranks(3, weights), "the next body gets new ranks"


def never_returns(rank, world):
    if rank == 0:
        time.sleep(60)


def test_a_hang_says_which_rank():
    with pytest.raises(RanksFailed, match="rank 0 hung; it was here") as failure:
        run_ranks(2, never_returns, timeout=2)
    assert "never_returns" in str(failure.value) and "rank 1 returned" in str(failure.value)


def dies(rank, world):
    if rank == 1:
        os._exit(7)


def test_a_death_is_reported():
    with pytest.raises(RanksFailed, match="rank 1 raised\ndied, exit code 7"):
        run_ranks(2, dies)
