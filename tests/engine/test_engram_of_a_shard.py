"""Promise: an Engram on a shard of a chunk gives the rows that it gives in the whole chunk. The module alone."""

import functools

import pytest
import torch
from model import ModelSpec, _draw_weights, _install_forms, config_of
from ranks import device, run_ranks

SPEC = ModelSpec(mode=None)
ROWS = 67


@functools.cache
def module():
    from sglang.srt.layers.engram import Engram, EngramLayout

    _install_forms()
    config = config_of(SPEC)
    torch.set_default_dtype(torch.bfloat16)
    try:
        engram = Engram(config, SPEC.engram_layers[0], EngramLayout.from_config(config), image_token_id=7)
    finally:
        torch.set_default_dtype(torch.float32)
    _draw_weights(engram)
    return engram.to(device()), config


def shards_of_whole(rank, world, residual_sharded):
    """This rank's rows of the Engram under a plan, and of the whole chunk's output without one."""
    from sglang.srt.layers.prefill_sp import PrefillSp
    from sglang.srt.layers.row_shards import RowShards, shard_rows
    from sglang.srt.runtime_context import get_forward, get_parallel

    engram, config = module()
    gen = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, config.hc_mult, config.hidden_size, generator=gen).to(torch.bfloat16).to(device())
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    table = config.engram_num_embeddings[engram.layer_hash_index]
    ids = torch.randint(0, table, (ROWS, columns), generator=gen).to(device())
    tokens = torch.randint(0, 9, (ROWS,), generator=gen).to(device())
    whole = engram(x, ids, input_ids=tokens)
    shards = RowShards.of(ROWS, get_parallel().tp_group)
    with get_forward().scoped(prefill_sp=PrefillSp(shards, residual_sharded)):
        mine = shard_rows(x, shards) if residual_sharded else x
        got = engram(mine, ids, input_ids=tokens)
    assert not torch.equal(whole, x), "an Engram that adds nothing would prove nothing"
    assert torch.equal(whole[tokens == 7], x[tokens == 7]), "image rows keep their residual"
    if not residual_sharded:
        return torch.equal(got, whole)
    real = shards.hi - shards.lo
    assert not got[real:].any(), "padding stays inert"
    return torch.equal(got[:real], whole[shards.lo : shards.hi])


@pytest.mark.parametrize("world", (2, 3, 8))
@pytest.mark.parametrize("residual_sharded", (True, False), ids=("sharded", "transport"))
def test_its_rows_are_the_whole_chunks(world, residual_sharded):
    assert all(run_ranks(world, shards_of_whole, residual_sharded))
