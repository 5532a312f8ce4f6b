"""What Qwen3 does under --enable-layernorm-sp, as JSON: run on the patched tree and on the stock one.

python layernorm_sp_run.py WORLD ...   # the engine is what PYTHONPATH has in front
"""

import json
import sys
import zlib

import cpu_kernels
import torch
from agreement import digest
from model import BatchSpec, make_batch
from ranks import collectives, device, run_ranks

BATCHES = {"divides": BatchSpec((64,)), "does not divide": BatchSpec((50, 21)), "decode-sized": BatchSpec((3,))}


class CausalMean(torch.nn.Module):
    """Attention's kernel, standing in: the mean of the values so far, in every query head."""

    def __init__(self, query_heads: int, kv_heads: int, head_dim: int):
        super().__init__()
        self.repeat, self.shape = query_heads // kv_heads, (kv_heads, head_dim)

    def forward(self, q, k, v, forward_batch, **_):
        value = v.view(v.shape[0], *self.shape).double()
        count = torch.arange(1, value.shape[0] + 1, device=v.device).view(-1, 1, 1)
        mean = (value.cumsum(0) / count).to(q.dtype).repeat_interleave(self.repeat, 1)
        return q + mean.reshape(q.shape)


class Turned(torch.nn.Module):
    """The rotary kernel, standing in: every query and key row is scaled by its position."""

    def forward(self, positions, query, key, **_):
        scale = (1 + positions.double() / 512).unsqueeze(-1)
        return tuple((x.double() * scale).to(x.dtype) for x in (query, key))


def build():
    from sglang.srt.layers.layer_boundary import layer_stack
    from sglang.srt.models import qwen3
    from sglang.srt.models.qwen3 import Qwen3DecoderLayer
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=8,
        num_hidden_layers=2,
        vocab_size=512,
        max_position_embeddings=512,
    )
    qwen3.get_rope = lambda *args, **kwargs: Turned()
    cpu_kernels.install()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with layer_stack():
            layers = [Qwen3DecoderLayer(config, layer_id=i) for i in range(2)]
    finally:
        torch.set_default_dtype(torch.float32)
    from sglang.srt.runtime_context import get_parallel

    for number, layer in enumerate(layers):
        attention = layer.self_attn
        attention.attn = CausalMean(attention.num_heads, attention.num_kv_heads, attention.head_dim)
        layer.to(device())
        for name, parameter in layer.named_parameters():
            sharded = "_proj" in name
            seed = zlib.crc32(f"{number} {name} {get_parallel().tp_rank if sharded else ''}".encode())
            value = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.data.copy_(value * 0.1 + (0 if sharded else 1))
    return layers


def run(rank, world):
    """{batch: (digest of every layer's output, collectives)} of this rank."""
    from sglang.srt.layers import layernorm_sp
    from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
    from sglang.srt.runtime_context import get_flags, get_forward

    results = {}
    flags = get_flags()
    flags.sp.enabled = True
    # The fused GEMM and collective needs symmetric memory; upstream's own path beside it does not.
    layernorm_sp._HAS_TORCH_SYMM_MEM_FUSED = False
    try:
        layers = build()
        for name, spec in BATCHES.items():
            batch = make_batch(spec)
            gen = torch.Generator().manual_seed(spec.rows)
            hidden = torch.randn(spec.rows, 64, generator=gen).to(torch.bfloat16).to(device())
            with collectives() as moved:
                residual_batch.start(batch)
                for layer in layers:
                    hidden = layer(batch.positions, hidden, batch)
                output, residual = residual_batch.stream_of(batch).export(hidden)
                active = get_forward().sp_active
                whole = layernorm_sp.sp_exit_gather(output + residual, num_tokens=spec.rows)
                get_forward().set("sp_active", False)
            results[name] = [digest(output), digest(residual), digest(whole), active, moved]
    finally:
        flags.sp.enabled = False
    return results


if __name__ == "__main__":
    json.dump({world: run_ranks(int(world), run) for world in sys.argv[1:]}, sys.stdout)
