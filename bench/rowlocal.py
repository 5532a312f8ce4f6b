"""The per-row operations that sequence-parallel prefill runs on a shard, at the released model's widths, on one GPU.

Each is called through the function that the layer loop calls, so that the kernel it picks is the engine's choice. The
tests ask whether a shard's rows get the bits of the whole chunk's call; the projection asks what they cost:

    python -m bench.rowlocal [--rows 16384 8192] [--json FILE]
"""

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch

HIDDEN, STREAMS, MIX = 5120, 4, 24
LOOKUP, ATTENTION_INPUT = 24 * 256, 1280 + 512
"""Columns of an Engram lookup (24 hash columns of 256) and of wqkv_a (q_lora 1280, one head of 512)."""
IMAGE_TOKEN = 4


class Operation(NamedTuple):
    """`call(*inputs(rows))` is the operation on `rows` rows; every input and every result has rows first."""

    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    call: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    library_gemm: bool = False
    """A library picks the kernel by row count, and nothing here can key it on the chunk's."""

    def run(self, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.call(*rows)
        return out if isinstance(out, tuple) else (out,)


@functools.cache
def publish_configuration() -> None:
    """The engine's modules read the published configuration of a server; this is one without a model."""
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", device="cuda")
    args.resolve_once()
    publish(args, role="test", ranks=SpawnRanks(0))


def operations(seed: int = 0) -> dict[str, Operation]:
    """The operations by name, with weights drawn at a working scale. Needs a CUDA GPU and an importable engine."""
    from sglang.kernels.ops.layernorm.mhc import mhc_stream_mean, split_bf16_hc_weight, split_tf32_hc_weight
    from sglang.srt.layers.engram import engram_gate
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.models import deepseek_v4_mhc as mhc
    from sglang.srt.runtime_context import get_platform

    publish_configuration()
    gen = torch.Generator(device="cuda").manual_seed(seed)

    def uniform(*shape, span=1.0, dtype=torch.float32):
        return torch.empty(shape, device="cuda", dtype=dtype).uniform_(-span, span, generator=gen)

    def normal(*shape):
        return torch.randn(shape, device="cuda", generator=gen, dtype=torch.bfloat16)

    config = mhc.HcConfig(
        mult=STREAMS, sinkhorn_iters=20, eps=1e-6, rms_eps=1e-20, hidden=HIDDEN, pre_from_prev=True, cp_prefill=False
    )
    norm = RMSNorm(HIDDEN, eps=1e-20, weight_dtype=torch.bfloat16).cuda()
    norm.weight.data.uniform_(0.5, 1.5, generator=gen)
    mix_weight = uniform(MIX, STREAMS * HIDDEN, span=0.04)
    parts = split_tf32_hc_weight(mix_weight) if get_platform().is_sm100 else None
    hc = mhc.HcSubLayer(
        config,
        mix_weight,
        torch.full((3,), 0.03, device="cuda"),
        uniform(MIX, span=3.0),
        norm,
        tf32_parts=parts,
        bf16_parts=split_bf16_hc_weight(mix_weight),
    )
    wkv = uniform((STREAMS + 1) * HIDDEN, LOOKUP, span=0.035, dtype=torch.bfloat16)
    wqkv_a = uniform(ATTENTION_INPUT, HIDDEN, span=0.035, dtype=torch.bfloat16)
    gate_q, gate_k = (uniform(STREAMS, HIDDEN, dtype=torch.bfloat16) for _ in range(2))

    def residual(rows):
        return normal(rows, STREAMS, HIDDEN)

    def ids(rows):
        return torch.randint(0, 64, (rows,), device="cuda", generator=gen)

    return {
        "mix stats": Operation(lambda m: (residual(m),), lambda r: mhc.mix_stats(hc, r)),
        "combine + norm": Operation(
            lambda m: (residual(m), uniform(m, STREAMS)), lambda r, pre: mhc.combine(hc, mhc.HcState(r, pre))
        ),
        "post": Operation(
            lambda m: (normal(m, HIDDEN), residual(m), uniform(m, STREAMS), uniform(m, STREAMS, STREAMS)),
            lambda y, r, post, comb: mhc.post(config, y, r, post, comb),
        ),
        "gate": Operation(
            lambda m: (residual(m), normal(m, (STREAMS + 1) * HIDDEN), ids(m)),
            lambda r, kv, i: engram_gate(r, kv, gate_q, gate_k, 1e-20, 1e-6, i, IMAGE_TOKEN),
        ),
        "stream mean": Operation(lambda m: (residual(m),), mhc_stream_mean),
        "wkv": Operation(
            lambda m: (normal(m, LOOKUP),), lambda e: torch.nn.functional.linear(e, wkv), library_gemm=True
        ),
        "wqkv_a": Operation(
            lambda m: (normal(m, HIDDEN),), lambda x: torch.nn.functional.linear(x, wqkv_a), library_gemm=True
        ),
    }


def keyed_on_chunk(rows: int, world: int, rank: int = 0):
    """A context in which kernels are chosen as in a chunk of `rows` rows whose residual `world` ranks share."""
    from sglang.srt.layers.prefill_sp import PrefillSp
    from sglang.srt.layers.row_shards import RowShards
    from sglang.srt.runtime_context import get_forward

    return get_forward().scoped(prefill_sp=PrefillSp(RowShards(rows, world, rank), True))


def shard_results(operation: Operation, inputs, world: int, keyed: bool) -> tuple[torch.Tensor, ...]:
    """`operation` on each of `world` shards of `inputs`, padded with zero rows as the engine does, put together again.

    keyed: kernels are chosen by the chunk's row count (the engine's rule); otherwise by the shard's.
    """
    rows = inputs[0].shape[0]
    shard = -(-rows // world)
    pieces = []
    for rank in range(world):
        own = [t[rank * shard : (rank + 1) * shard] for t in inputs]
        own = [torch.cat([t, t.new_zeros(shard - len(t), *t.shape[1:])]) if len(t) < shard else t for t in own]
        with keyed_on_chunk(rows, world, rank) if keyed else nullcontext():
            pieces.append(operation.run(*own))
    return tuple(torch.cat(parts)[:rows] for parts in zip(*pieces, strict=True))


def device_ms(run: Callable[[], object], repeats: int = 15) -> float:
    """Median milliseconds that the GPU is busy with one `run`, its inputs not in the L2 cache.

    The GPU sleeps while the launches are queued, so that they cost nothing.
    """
    flushed = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    run()
    spans = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flushed.zero_()
        torch.cuda._sleep(1 << 21)
        start.record()
        run()
        end.record()
        spans.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in spans)


@torch.no_grad
def times(rows, world: int = 1) -> dict[str, dict[int, float]]:
    """Device milliseconds of each operation on one rank's shard of a chunk, by the chunk's rows; world 1: all of them.

    A shard runs the kernel of its chunk, as in the engine; that needs the patched tree.
    """
    table = {}
    for name, operation in operations().items():
        table[name] = {}
        for chunk in rows:
            inputs = operation.inputs(-(-chunk // world))
            with keyed_on_chunk(chunk, world) if world > 1 else nullcontext():
                table[name][chunk] = device_ms(functools.partial(operation.run, *inputs))
    return table


def main():
    from bench.tree import describe

    parser = argparse.ArgumentParser(description="Milliseconds of each per-row operation, by rows, on one GPU.")
    parser.add_argument("--rows", type=int, nargs="+", default=[32768, 16384, 8192, 4096, 2048])
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4, 8], help="ranks that share a chunk's rows")
    parser.add_argument("--json", help="also write the tables here, for bench.project")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench.rowlocal: no CUDA GPU is visible; run this on one")
    print(describe())
    tables = {}
    for world in args.worlds:
        tables[world] = table = times(args.rows, world)
        print(f"\nOne of {world} shards, milliseconds:\n")
        print("| rows in the chunk |" + "".join(f" {name} |" for name in table))
        print("|---|" + "---|" * len(table))
        for m in args.rows:
            print(f"| {m} |" + "".join(f" {table[name][m]:.3f} |" for name in table), flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"tree": describe(), "ms": tables}, f, indent=1)


if __name__ == "__main__":
    main()
