"""A small Qwen3 under upstream's LayerNorm sequence parallelism (--enable-layernorm-sp), which the series leaves alone."""

import functools
from contextlib import contextmanager

import model
import ranks
import torch
from agreement import digest
from model import BatchSpec

BATCHES = (BatchSpec((150, 121)), BatchSpec((64,)))


class Attention:
    """Causal attention inside each request, in fp64: enough to carry every row's bits on."""

    def prepare(self, batch: BatchSpec) -> None:
        request = torch.repeat_interleave(torch.arange(len(batch.lens)), torch.tensor(batch.lens))
        self._visible = (request[:, None] == request) & torch.ones(batch.rows, batch.rows).tril().bool()

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        heads = layer.tp_q_head_num
        q = q.double().view(len(q), heads, -1)
        k, v = (t.double().view(len(t), layer.tp_k_head_num, -1) for t in (k, v))
        k, v = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) * layer.scaling
        weights = scores.masked_fill(~self._visible, float("-inf")).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, v).flatten(1).bfloat16()


@contextmanager
def layernorm_sp(enabled: bool):
    from sglang.srt.layers import layernorm_sp as module
    from sglang.srt.runtime_context import get_flags

    # The fused GEMMs of torch's symmetric memory are for GPUs.
    module._HAS_TORCH_SYMM_MEM_FUSED = False
    with get_flags().sp.override(enabled=enabled):
        yield


@functools.cache
def build(enabled: bool):
    from sglang.srt.models.qwen3 import Qwen3Model
    from transformers import Qwen3Config

    model._install_forms()
    config = Qwen3Config(
        vocab_size=model.VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=16,
        max_position_embeddings=1024,
    )
    with layernorm_sp(enabled), torch.device(ranks.device()):
        torch.set_default_dtype(torch.bfloat16)
        try:
            built = Qwen3Model(config)
        finally:
            torch.set_default_dtype(torch.float32)
        model._draw_weights(built)
    return built.eval()


def run(rank, world, enabled):
    """[(digest of every final row, collectives)] of each batch."""
    from sglang.srt.layers.layernorm_sp import maybe_exit_gather
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    from sglang.srt.runtime_context import get_forward

    built, backend, found = build(enabled), Attention(), []
    for batch in BATCHES:
        backend.prepare(batch)
        forward_batch = model.make_batch(batch)
        context = ForwardContext(attn_backend=backend)
        with (
            layernorm_sp(enabled),
            ranks.collectives() as moved,
            forward_context(context, forward_batch=forward_batch),
            torch.inference_mode(),
        ):
            hidden = built(forward_batch.input_ids, forward_batch.positions, forward_batch)
            hidden, _ = maybe_exit_gather(
                hidden_states=hidden,
                hidden_states_before_norm=None,
                input_ids=forward_batch.input_ids,
                forward_mode=forward_batch.forward_mode,
            )
            assert not get_forward().sp_active
        found.append((digest(hidden), moved))
    return found
