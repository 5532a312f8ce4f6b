"""Promise: every kernel choice that depends on the row count reads the chunk's rows, never the shard's.

The forms of ``cpu_kernels`` give each kernel variant bits of its own, so a shard that takes another variant than its
chunk would shows in every row.
"""

import ast
import re
from dataclasses import replace

import cpu_kernels
import pytest
import torch
from agreement import assert_entered, assert_same, results
from chunks import STANDARD
from model import BatchSpec, ModelSpec, build_model, machine
from ranks import run_ranks
from trees import engine_tree

# --- every such choice is known ------------------------------------------------------------------------------------

CHUNK = "reads the chunk's rows"
WHOLE = "attention and experts see every row of the chunk"
DECODE = "decode, verify and drafts only: no chunk gets here"
V4 = "DeepSeek-V4's own residual, which is never sharded"
STOCK = "asked before a plan is made, with the chunk's rows"
MASK = "a bound inside a kernel"

MHC = "srt/models/deepseek_v4_mhc.py"
V4_MODEL = "srt/models/deepseek_v4.py"
KERNELS = "kernels/ops/layernorm/mhc.py"
COMBINE = "kernels/ops/layernorm/hc_combine_norm.py"
SPLIT_H = "kernels/ops/layernorm/mhc_post_split_h.py"
FINALIZE = "srt/layers/quantization/mxfp4_flashinfer_trtllm_moe.py"

# Modules of which something runs on a shard.
SCANNED = (
    MHC,
    V4_MODEL,
    KERNELS,
    COMBINE,
    SPLIT_H,
    FINALIZE,
    "srt/models/deepseek_v4_boundary.py",
    "srt/layers/engram.py",
    "srt/layers/layernorm.py",
    "kernels/ops/layernorm/mhc_post_combine_norm_prefill.py",
    "kernels/ops/layernorm/mhc_mega.py",
    "kernels/ops/embeddings/engram_gate.py",
    "kernels/ops/embeddings/engram_gather.py",
)

KNOWN = {
    (MHC, "fused_mxfp8_rows", "rows <= FUSED_MXFP8_PRODUCER_MAX_ROWS"): CHUNK,
    (MHC, "use_stats_stream", "1 < x.shape[0] <= 64"): DECODE,
    (MHC, "_mix_stats_impl", "32 <= rows < 4096"): CHUNK,
    (MHC, "_mix_stats_impl", "rows >= 32"): CHUNK,
    (MHC, "_mix_stats_impl", "4096 <= rows <= 65536"): CHUNK,
    (MHC, "_mix_stats_impl", "32 <= rows <= 65536"): CHUNK,
    (MHC, "_combine", "0 < rows <= 96"): CHUNK,
    (MHC, "_combine", "4096 <= rows <= 65536"): CHUNK,
    (MHC, "_combine", "rows <= 128"): CHUNK,
    (MHC, "post", "rows <= 384"): CHUNK,
    (MHC, "post", "1 <= rows <= 64"): CHUNK,
    (MHC, "_post_fusion", "4096 <= rows <= 65536"): CHUNK,
    (MHC, "run_moe_post", "out.routed.expert_weights.shape[0] <= 128"): WHOLE,
    (KERNELS, "mhc_pre", "num_tokens <= 2048"): V4,
    (KERNELS, "mhc_fused_post_pre", "num_tokens < 8"): V4,
    (KERNELS, "mhc_post", "rows <= 256"): CHUNK,
    (KERNELS, "_block_m_for", "m <= _HC_MIX_BLOCK_M_SMALL"): CHUNK,
    (KERNELS, "_block_m_for", "m <= _HC_MIX_MID_MAX_M"): CHUNK,
    (KERNELS, "hc_mix_stats_sinkhorn_bf16x3", "32 <= rows < 4096"): CHUNK,
    (KERNELS, "hc_mix_stats_sinkhorn_bf16x3", "4096 <= rows <= 65536"): CHUNK,
    (COMBINE, "hc_combine_norm", "rows >= 4096"): CHUNK,
    (COMBINE, "hc_combine_norm", "rows <= 8"): CHUNK,
    (COMBINE, "hc_combine_norm", "rows <= 48"): CHUNK,
    (COMBINE, "hc_combine_norm_mxfp8", "m <= 128"): "checks its caller, which reads the chunk's rows",
    (SPLIT_H, "mhc_post_split_h", "rows <= 8"): CHUNK,
    (V4_MODEL, "_apply_wo_a_bf16_matmul", "2 <= o.shape[0] <= 384"): WHOLE,
    (V4_MODEL, "_apply_wo_a_bf16_matmul", "0 < o.shape[0] <= 384"): WHOLE,
    (V4_MODEL, "_apply_wo_a_bf16_matmul", "4096 <= o.shape[0] <= 65536"): WHOLE,
    (V4_MODEL, "_apply_wo_a_bf16_matmul", "2 <= o.shape[0] <= 8"): WHOLE,
    (V4_MODEL, "MqaAttentionBase._kernel_num_heads", "num_tokens > SM120_DECODE_MAX_TOKENS"): WHOLE,
    (V4_MODEL, "MQALayer.forward", "x.shape[0] <= self._multi_stream_bs_limit"): WHOLE,
    (V4_MODEL, "MQALayer.forward", "0 < o.shape[0] <= _FUSED_WO_A_MAX_TOKENS"): WHOLE,
    (V4_MODEL, "DeepseekV4DecoderLayerBase.hc_pre", "x.shape[0] >= _HC_PRENORM_DEEPGEMM_MIN_TOKENS"): V4,
    (FINALIZE, "Mxfp4FlashinferTrtllmMoEMethod.apply", "num_tokens > 32"): WHOLE,
    (FINALIZE, "Mxfp4FlashinferTrtllmMoEMethod.apply", "96 < num_tokens <= 384"): WHOLE,
    (FINALIZE, "can_fuse_all_reduce", "num_tokens <= 384"): STOCK,
}

ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
COUNTS_ROWS = re.compile(r"shape\[0\]|\b(rows|m|num_tokens|num_rows)\b")


def is_bound(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and node.value > 1
    name = getattr(node, "id", getattr(node, "attr", ""))
    return len(name) > 1 and (name.isupper() or name.endswith("_limit"))


def row_gates(source: str):
    """(function, comparison) of every comparison of a row count with a fixed bound, outside GPU code."""

    def visit(node, scope):
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if any("jit" in ast.unparse(decorator) for decorator in child.decorator_list):
                    continue
                inner = [*scope, child.name]
            if isinstance(child, ast.Compare) and isinstance(child.ops[0], ORDERINGS):
                parts = [child.left, *child.comparators]
                if any(map(is_bound, parts)) and any(COUNTS_ROWS.search(ast.unparse(part)) for part in parts):
                    yield ".".join(scope), ast.unparse(child)
            yield from visit(child, inner)

    return visit(ast.parse(source), [])


def found_gates():
    package = engine_tree() / "sglang"
    return {(file, *gate) for file in SCANNED for gate in row_gates((package / file).read_text(encoding="utf-8"))}


def test_every_choice_by_row_count_is_known():
    found = found_gates()
    assert len(found) > 30, "the scan found nothing to check"
    new, gone = found - KNOWN.keys(), KNOWN.keys() - found
    assert not new, (
        f"choices by row count that nobody has judged: {sorted(new)}. One that runs on a shard must read the chunk's "
        "rows (layers/prefill_sp.chunk_rows); then list it in KNOWN."
    )
    assert not gone, f"no longer in the source, take them out of KNOWN: {sorted(gone)}"


def test_what_runs_on_a_shard_does_not_count_its_own_rows():
    for (file, function, comparison), why in KNOWN.items():
        if why == CHUNK:
            assert "shape[0]" not in comparison, f"{file}: {function}: {comparison}"


# --- and has the chunk's bits --------------------------------------------------------------------------------------

# The released width, at which the combine and post kernels have their gates.
WIDE = ModelSpec(hidden=5120, layers=2, kv_sources=(0,), engram_layers=(), tail_rows=0, mode="off")
NARROW = replace(WIDE, hidden=256, compensated_stats=True)

# Rows around every bound in KNOWN that a chunk can meet, and as few as possible.
BOUNDS = {
    "sm90": (33, 49, 65, 97, 257, 2049, 4097),
    "sm100": (33, 49, 129, 257, 385, 2049, 4097),
    "sm120": (9, 49, 129, 257, 385, 2049, 4097),
}


def on_shards(rank, world, spec, rows, shards_of, operations):
    """[(operation, world, owner)] whose shard differs from its rows of the whole chunk, in one process."""
    from sglang.srt.layers.prefill_sp import PrefillSp
    from sglang.srt.layers.row_shards import RowShards, shard_rows
    from sglang.srt.models import deepseek_v4_mhc as mhc
    from sglang.srt.runtime_context import get_forward

    layer = build_model(spec).layers[1]
    generator = torch.Generator().manual_seed(rows)

    def drawn(*shape, dtype=torch.bfloat16):
        return torch.randn(rows, *shape, generator=generator).to(dtype)

    residual, y, pre, post = drawn(4, spec.hidden), drawn(spec.hidden), drawn(4, dtype=torch.float32), drawn(4)
    comb = drawn(4, 4, dtype=torch.float32)
    boundary = mhc.make_boundary(layer.post_attention_layernorm, accepts_mxfp8=False, hc=layer.ffn_hc)
    runs = {
        "mix stats": lambda cut: mhc.mix_stats(layer.attn_hc, cut(residual)),
        "combine": lambda cut: [mhc.combine(layer.attn_hc, mhc.HcState(cut(residual), cut(pre)))],
        "post": lambda cut: [mhc.post(layer.hc_cfg, cut(y), cut(residual), cut(post.float()), cut(comb))],
        "attention post": lambda cut: attention_post(cut),
    }

    def attention_post(cut):
        state = mhc.run_attn_post(
            layer.attn_hc,
            cut(y),
            cut(residual),
            stats_stream=None,
            next=boundary,
            world_size=world,
            precomputed=(cut(pre), cut(post.float()), cut(comb)),
        )
        return [state.residual, state.pre, *([state.input.rows] if state.input is not None else [])]

    differ, variants = [], set()
    with machine(spec, "off"):
        for name in operations:
            cpu_kernels.launches()
            whole = runs[name](lambda tensor: tensor)
            launched = cpu_kernels.launches()
            variants |= set(launched)
            for ranks, owner in shards_of:
                shards = RowShards(rows, ranks, owner)
                with get_forward().scoped(prefill_sp=PrefillSp(shards, True)):
                    own = runs[name](lambda tensor, shards=shards: shard_rows(tensor, shards))
                equal = all(
                    torch.equal(part[: shards.hi - shards.lo], full[shards.lo : shards.hi])
                    for part, full in zip(own, whole, strict=True)
                )
                if not equal or cpu_kernels.launches() != launched:
                    differ.append((name, ranks, owner))
    return differ, variants


EVERYWHERE = tuple((ranks, owner) for ranks in (2, 3, 4, 8) for owner in (0, ranks - 1))


@pytest.mark.parametrize("platform", BOUNDS)
@pytest.mark.parametrize("bound", range(7))
def test_mix_stats_of_a_shard(platform, bound):
    first = BOUNDS[platform][bound]
    for rows in (first - 1, first):
        (result,) = run_ranks(1, on_shards, replace(NARROW, platform=platform), rows, EVERYWHERE, ("mix stats",))
        assert result[0] == []


@pytest.mark.parametrize("platform", BOUNDS)
@pytest.mark.parametrize("bound", range(5))
def test_combine_and_post_of_a_shard(platform, bound):
    first = BOUNDS[platform][bound]
    operations = ("combine", "post", "attention post")
    for rows in (first - 1, first):
        (result,) = run_ranks(1, on_shards, replace(WIDE, platform=platform), rows, EVERYWHERE, operations)
        assert result[0] == []


@pytest.mark.parametrize(
    ("platform", "operation", "kernel"),
    (("sm90", "combine", "combine_norm_prefill"), ("sm100", "attention post", "mhc_post_combine_norm_prefill")),
)
def test_a_shard_of_a_wide_chunk(platform, operation, kernel):
    """The two gates of 4096 rows at the released width."""
    spec = replace(WIDE, platform=platform)
    (result,) = run_ranks(1, on_shards, spec, 4096, ((2, 1),), (operation,), timeout=300)
    differ, variants = result
    assert differ == []
    assert variants == {(kernel,)}


def test_the_forms_tell_the_variants_apart():
    """A control: without a plan half of a chunk does differ from the chunk's half."""
    (equal,) = run_ranks(1, half_without_a_plan, replace(NARROW, platform="sm90"), 4096)
    assert not equal


def half_without_a_plan(rank, world, spec, rows):
    from sglang.srt.models import deepseek_v4_mhc as mhc

    layer = build_model(spec).layers[1]
    residual = torch.randn(rows, 4, spec.hidden, generator=torch.Generator().manual_seed(1)).bfloat16()
    with machine(spec, "off"):
        whole = mhc.mix_stats(layer.attn_hc, residual)
        half = mhc.mix_stats(layer.attn_hc, residual[: rows // 2])
    return all(torch.equal(a[: rows // 2], b) for a, b in zip(whole, half, strict=True))


@pytest.mark.parametrize("platform", ("sm90", "sm100"))
def test_a_chunk_whose_shards_lie_below_a_bound(platform):
    """4096 rows and more take another mix-stats kernel than the 2050 of a shard: through the whole model."""
    spec = replace(STANDARD, hidden=256, layers=3, kv_sources=(0, 2), compensated_stats=True, platform=platform)
    by_rank = results(2, spec, BatchSpec((4099,)), ("off", "sharded", "exact"))
    assert_entered(by_rank, "sharded")
    assert_same(by_rank, "exact", "off")
    assert_same(by_rank, "sharded", "off")


def test_a_wide_chunk_on_blackwell_carries_its_normed_input_into_the_tail():
    """From 4096 rows on the post kernel also norms the next input; the tail takes that along with the residual."""
    spec = replace(WIDE, kv_sources=(0, 1), tail_rows=8, platform="sm100", mode="sharded")
    by_rank = results(2, spec, BatchSpec((3000, 1097)), ("off", "exact"))
    assert_same(by_rank, "exact", "off")
    for result in by_rank:
        assert ("all_gather_into_tensor", 2 * spec.tail_rows, spec.hidden * 2) in result["exact"][2]
