"""A small DeepSeek-V4.1 on the ranks of ``ranks.py``: upstream's modules, drawn weights.

Real: the model and its layer loop, the CUDA decoder layer with its stage boundaries and
transports, the hyper-connections and their row-count gates, attention's projections
around the kernel, the MoE, the Engram, every linear and every collective. Stand-ins:
the launches in ``cpu_kernels.py`` and the attention backend in ``attention.py``.
"""

import functools
import os
import zlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import cpu_kernels
import ranks
import torch
from attention import StandInBackend

VOCAB = 512
IMAGE_TOKEN = 500


@dataclass(frozen=True)
class ModelSpec:
    """What of the model a test chooses; two equal specs share one built model.

    Widths are the smallest that 1, 2, 3, 4 and 8 ranks divide.

    Fields:
        engram_heads: Hash heads; 12 gives columns that every world size divides.
        kv_sources: Layers that own compressed keys. The last one starts the tail.
        tail_rows: Rows of each request's end that the late layers run on (128 in
            upstream); 0 lets them run on every row.
        compensated_stats: Mix stats have their bf16 and tf32 weight parts, as the
            real width has; needs a hidden size that 256 divides.
        platform: Whose row-count gates run, a key of PLATFORMS.
        mode: What --prefill-sp-mode the model is built for; None on a stock tree.
    """

    layers: int = 6
    hidden: int = 64
    engram_layers: tuple[int, ...] = (1,)
    engram_heads: int = 12
    kv_sources: tuple[int, ...] = (0, 4)
    tail_rows: int = 128
    vision: bool = False
    compensated_stats: bool = False
    platform: str = "sm90"
    mode: str | None = "sharded"


PLATFORMS = {
    "none": {},
    "sm90": dict(is_sm90=True),
    "sm100": dict(is_blackwell=True, is_sm100=True),
    "sm120": dict(is_blackwell=True, is_sm120=True),
}
_NO_PLATFORM = dict(is_sm90=False, is_sm100=False, is_sm120=False, is_blackwell=False)


def config_of(spec: ModelSpec):
    """The Hugging Face configuration of ``spec``, the release's with small widths."""
    from sglang.srt.configs.deepseek_v41 import DeepseekV41Config
    from sglang.srt.layers.engram import EngramLayout

    values = dict(
        architectures=["DeepseekV4ForCausalLM"],
        num_hidden_layers=spec.layers,
        hidden_size=spec.hidden,
        vocab_size=VOCAB,
        max_position_embeddings=8192,
        num_attention_heads=24,
        num_key_value_heads=1,
        head_dim=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        q_lora_rank=32,
        o_lora_rank=8,
        o_groups=24,
        rms_norm_eps=1e-20,
        rope_theta=10000.0,
        rope_scaling=dict(
            type="yarn",
            rope_type="yarn",
            factor=4.0,
            beta_fast=32,
            beta_slow=1,
            original_max_position_embeddings=2048,
        ),
        compress_rope_theta=40000,
        compress_ratios=_compress_ratios(spec),
        kv_source_layer_ids=list(spec.kv_sources),
        index_source_layer_ids=list(spec.kv_sources),
        candidate_source_layer_id=-1,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=8,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=48,
        n_group=1,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sqrtsoftplus",
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        num_hash_layers=0,
        first_k_dense_replace=0,
        hidden_act="silu",
        swiglu_limit=None,
        hc_mult=4,
        hc_sinkhorn_iters=3,
        hc_eps=1e-6,
        hc_pre_from_prev_sublayer=True,
        q_head_norm=False,
        window_size=spec.tail_rows,
        engram_layer_ids=list(spec.engram_layers),
        engram_max_ngram_size=3,
        engram_vocab_size=40,
        engram_n_heads=spec.engram_heads,
        engram_head_dim=32,
        engram_pad_token_id=2,
        tie_word_embeddings=False,
        image_token_id=IMAGE_TOKEN,
        vision_n_layers=1 if spec.vision else 0,
        language_model_only=False,
    )
    config = DeepseekV41Config(**values)
    if spec.engram_layers:
        config.engram_num_embeddings = [0] * len(spec.engram_layers)
        primes = EngramLayout.from_config(config).primes
        config.engram_num_embeddings = [sum(sum(per_ngram) for per_ngram in layer) for layer in primes]
        from sglang.srt.layers.engram import build_compressed_token_map

        config.engram_compressed_vocab_size = build_compressed_token_map(tokenizer())[1]
    return config


def _compress_ratios(spec: ModelSpec) -> list[int]:
    """Ratio 2 between the first source and the tail, 1 at the last source and on."""
    last = max(spec.kv_sources)
    return [2 if i < last else 1 for i in range(spec.layers)]


@functools.cache
def tokenizer():
    """A real tokenizer of VOCAB words, some of which normalize to one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = [f"w{i}" if i % 5 else f"W{i - 1}" for i in range(VOCAB)]
    words[0] = "[UNK]"
    model = models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="[UNK]")


# --- building --------------------------------------------------------------------


@functools.cache
def _install_forms() -> None:
    """Let a CPU process take the CUDA side of every switch the layer loop has."""
    from sglang.srt.layers import engram
    from sglang.srt.layers.moe.utils import initialize_moe_config
    from sglang.srt.models import deepseek_v2, deepseek_v4

    if ranks.device().type == "cpu":
        cpu_kernels.install()
        deepseek_v4._is_cuda = deepseek_v2._is_cuda = True
        deepseek_v4.DeepseekV4DecoderLayer = deepseek_v4.DeepseekV4CudaDecoderLayer
    engram.get_tokenizer = lambda *args, **kwargs: tokenizer()
    initialize_moe_config()


@contextmanager
def configured(**fields):
    """Resolved configuration leaves, for a while."""
    from sglang.srt.runtime_context import get_context

    context = get_context()
    before = {name: context.config_leaf(name) for name in fields}
    context.override("test", **fields)
    try:
        yield
    finally:
        context.override("test", **before)


@contextmanager
def environment(**values: str):
    """Environment variables that upstream reads at each use, for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def machine(spec: ModelSpec, mode: str | None, min_tokens: int | None = None):
    """The configuration and the platform under which ``spec`` is built or run."""
    from sglang.srt.runtime_context import override_platform

    fields = dict(enable_decoder_swa_bounded_replay=spec.tail_rows > 0)
    if mode is not None:
        fields["prefill_sp_mode"] = mode
    if min_tokens is not None:
        fields["prefill_sp_min_tokens"] = min_tokens
    with ExitStack() as stack:
        stack.enter_context(configured(**fields))
        if ranks.device().type == "cpu":
            facts = {**_NO_PLATFORM, **PLATFORMS[spec.platform]}
            stack.enter_context(override_platform(**facts))
        yield


@functools.cache
def build_model(spec: ModelSpec = ModelSpec()):
    """The model of ``spec`` on this rank, built once and kept.

    Replicated weights are the same on every rank. A weight of which each rank holds a
    shard is drawn per rank, so no two ranks' partial sums agree.
    """
    from sglang.srt.models import deepseek_v4

    _install_forms()
    with machine(spec, spec.mode), torch.device(ranks.device()):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = deepseek_v4.DeepseekV4Model(config_of(spec))
        finally:
            torch.set_default_dtype(torch.float32)
        _draw_weights(model)
        _bind_hyper_connections(model, spec)
        if model.engram_hasher is not None:
            model.engram_hasher.init_history(REQUEST_SLOTS, ranks.device())
    return model.eval()


def _sharded_modules():
    from sglang.srt.layers.engram import EngramEmbedding
    from sglang.srt.layers.linear import ColumnParallelLinear, RowParallelLinear
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    return (
        ColumnParallelLinear,
        EngramEmbedding,
        FusedMoE,
        RowParallelLinear,
        VocabParallelEmbedding,
    )


def _draw_weights(model) -> None:
    from sglang.srt.runtime_context import get_parallel

    sharded = _sharded_modules()
    for module_name, module in model.named_modules():
        rank = get_parallel().tp_rank if isinstance(module, sharded) else None
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}"
            seed = zlib.crc32(f"{full_name} {rank}".encode())
            generator = torch.Generator().manual_seed(seed)
            value = _drawn(full_name, parameter.shape, generator)
            if parameter.dtype == torch.float8_e8m0fnu:
                exponents = (value > 0).to(torch.uint8) + 126
                parameter.data.view(torch.uint8).copy_(exponents)
            else:
                parameter.data.copy_(value)


def _drawn(name: str, shape, generator) -> torch.Tensor:
    value = torch.randn(shape, generator=generator)
    leaf = name.rsplit(".", 2)[-2:]
    if "norm" in leaf[0] or leaf[1] in ("q_weight", "k_weight"):
        return 1 + 0.1 * value
    if leaf[1].startswith("hc_") or leaf[1].startswith("e_score"):
        return 0.1 * value
    if leaf[0] in ("embed_tokens", "embed") or value.ndim < 2:
        return value
    return value * value.shape[-1] ** -0.5


def _bind_hyper_connections(model, spec: ModelSpec) -> None:
    """What the weight loader does after loading, and the weight parts of the real
    width for a narrow one."""
    from sglang.kernels.ops.layernorm.mhc import (
        split_bf16_hc_weight,
        split_tf32_hc_weight,
    )

    for layer in model.layers:
        layer.refresh_mhc_norm_weight_cache()
        if not spec.compensated_stats:
            continue
        for part in ("attn", "ffn"):
            weight = getattr(layer, f"hc_{part}_fn").data
            setattr(layer, f"_hc_{part}_bf16_parts", split_bf16_hc_weight(weight))
            if spec.platform == "sm100":
                setattr(layer, f"_hc_{part}_tf32_parts", split_tf32_hc_weight(weight))
        layer._init_hyper_connections()


# --- batches ---------------------------------------------------------------------

REQUEST_SLOTS = 16


@dataclass(frozen=True)
class BatchSpec:
    """One prefill batch; its token ids follow from ``seed``, request and position.

    Fields:
        lens: Extend rows of each request, in batch order.
        prefix: Cached rows before each, from an earlier chunk or ``fill_prefix``.
        requests: Request slots, 0.. in batch order unless given.
        images: [start, stop) rows of the batch that hold image tokens.
        draft_layers: Layers whose input the draft reads, or None.
        logprob_starts: Per request, the extend row from which prompt logprobs are
            read; None for none.
        hidden_states: "null", "last" or "full" (CaptureHiddenMode).
        bounded: The batch says how many of its rows are real (num_token_non_padded), for the experts' routing.
        kind: "extend", "mixed" or "idle" (ForwardMode).
    """

    lens: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()
    images: tuple[int, int] | None = None
    draft_layers: tuple[int, ...] | None = None
    logprob_starts: tuple[int, ...] | None = None
    hidden_states: str = "null"
    bounded: bool = False
    kind: str = "extend"
    seed: int = 0

    @property
    def rows(self) -> int:
        return sum(self.lens)

    @property
    def prefix_lens(self) -> tuple[int, ...]:
        return self.prefix or (0,) * len(self.lens)

    @property
    def slots(self) -> tuple[int, ...]:
        return self.requests or tuple(range(len(self.lens)))


def token_ids(seed: int, request: int, first: int, count: int) -> torch.Tensor:
    """[count] ids of a request's positions ``first``.., whatever the chunking."""
    generator = torch.Generator().manual_seed(7919 * seed + request)
    return torch.randint(3, IMAGE_TOKEN, (first + count,), generator=generator)[first:]


def make_batch(spec: BatchSpec):
    """The real ForwardBatch of ``spec``."""
    from sglang.srt.model_executor.forward_batch_info import (
        CaptureHiddenMode,
        ForwardBatch,
        ForwardMode,
    )

    pieces, positions, histories = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)], []
    for request, prefix, length in zip(spec.slots, spec.prefix_lens, spec.lens, strict=True):
        pieces.append(token_ids(spec.seed, request, prefix, length))
        positions.append(torch.arange(prefix, prefix + length))
        before = token_ids(spec.seed, request, max(0, prefix - 2), min(2, prefix))
        histories.append([0] * (2 - len(before)) + before.tolist())
    ids = torch.cat(pieces)
    if spec.images is not None:
        ids[slice(*spec.images)] = IMAGE_TOKEN
    position = torch.cat(positions)
    slots, lens, prefix = (torch.tensor(v, dtype=torch.int64) for v in (spec.slots, spec.lens, spec.prefix_lens))
    place = dict(device=ranks.device())
    return ForwardBatch(
        forward_mode=ForwardMode[spec.kind.upper()],
        batch_size=len(spec.lens),
        input_ids=ids.to(**place),
        req_pool_indices=slots.to(**place),
        seq_lens=(prefix + lens).to(**place),
        seq_lens_cpu=prefix + lens,
        out_cache_loc=None,
        seq_lens_sum=int((prefix + lens).sum()),
        positions=position.to(**place),
        extend_num_tokens=spec.rows,
        extend_seq_lens=lens.to(**place),
        extend_prefix_lens=prefix.to(**place),
        extend_start_loc=(lens.cumsum(0) - lens).to(**place),
        extend_prefix_lens_cpu=list(spec.prefix_lens),
        extend_seq_lens_cpu=list(spec.lens),
        extend_logprob_start_lens_cpu=(list(spec.logprob_starts or spec.lens) if spec.rows else []),
        return_logprob=spec.logprob_starts is not None,
        capture_hidden_mode=CaptureHiddenMode[spec.hidden_states.upper()],
        engram_history=torch.tensor(histories, dtype=torch.int32, **place),
        is_extend_in_batch=True,
        num_token_non_padded=torch.tensor(spec.rows, dtype=torch.int32, **place) if spec.bounded else None,
        global_num_token_non_padded_cpu=spec.rows,
    )


def late_layer_tail(forward_batch, tail_rows: int, *, dspark: bool):
    """The tail of an eager batch, laid out by upstream's own functions."""
    from sglang.kernels.ops.attention.dsv4.attn_metadata_kernels import (
        late_layer_tail_layout,
    )
    from sglang.srt.layers.attention.deepseek_v4_backend import (
        LateLayerTail,
        late_layer_whole_extend,
    )

    lens = forward_batch.extend_seq_lens_cpu
    indices, tail_lens, _ = late_layer_tail_layout(
        extend_lens_cpu=lens,
        seq_lens_cpu=forward_batch.seq_lens_cpu.tolist(),
        tail_len=tail_rows,
        device=forward_batch.input_ids.device,
        whole_extend=late_layer_whole_extend(forward_batch, dspark=dspark),
    )
    start = lens[0] - tail_lens[0] if len(lens) == 1 else None
    taken = slice(start, None) if start is not None else indices
    return LateLayerTail(
        token_indices=indices,
        positions=forward_batch.positions[taken],
        extend_seq_lens=torch.tensor(tail_lens, device=indices.device),
        extend_seq_lens_cpu=tail_lens,
        swa_out_cache_loc=None,
        contiguous_start=start,
    )


# --- running ---------------------------------------------------------------------


@dataclass
class Output:
    """Everything one forward leaves behind, on the rows that are defined.

    Fields:
        hidden: [T, hidden] final normed rows; with a tail, the tail's.
        residual: [T, hc_mult * hidden] the streams before the final combine.
        aux: [T, draft layers * hidden] the draft's states, or None.
        source_x: The input of the tail's source layer, every row, or None.
        caches: Every key and latent cache of the attention backend.
        calls: (what, layer, rows) of every attention call, in order.
    """

    hidden: torch.Tensor
    residual: torch.Tensor
    aux: torch.Tensor | None
    source_x: torch.Tensor | None
    caches: list[torch.Tensor]
    calls: list[tuple[str, int, int]]

    def tensors(self) -> dict[str, torch.Tensor]:
        named = dict(hidden=self.hidden, residual=self.residual)
        if self.aux is not None:
            named["aux"] = self.aux
        if self.source_x is not None:
            named["source_x"] = self.source_x
        named |= {f"cache {i}": cache for i, cache in enumerate(self.caches)}
        return named


def new_backend(spec: ModelSpec, requests: int, context: int) -> StandInBackend:
    """An empty attention cache of so many positions per request, for the chunks that
    are given it."""
    config = build_model(spec).config
    return StandInBackend(config, requests, context, ranks.device())


def forward(
    spec: ModelSpec,
    batch: BatchSpec,
    mode: str | None = "off",
    *,
    min_tokens: int | None = None,
    backend: StandInBackend | None = None,
) -> Output:
    """One forward of ``spec``'s model over ``batch`` under --prefill-sp-mode ``mode``.

    Args:
        min_tokens: --prefill-sp-min-tokens; the batch's rows unless given, so that
            the batch is a chunk for sequence parallelism.
        backend: The cache of an earlier chunk; a fresh one, with prefixes drawn,
            unless given.
    """
    from sglang.srt.model_executor.forward_context import (
        ForwardContext,
        forward_context,
    )

    model = build_model(spec)
    if backend is None:
        ends = [p + n for p, n in zip(batch.prefix_lens, batch.lens, strict=True)]
        backend = new_backend(spec, max(batch.slots, default=0) + 1, max(ends, default=1))
        for request, rows in zip(batch.slots, batch.prefix_lens, strict=True):
            backend.fill_prefix(request, rows)
    model.dspark_layers_to_capture = None if batch.draft_layers is None else list(batch.draft_layers)
    if mode is not None and min_tokens is None:
        min_tokens = max(batch.rows, 1)
    forward_batch = make_batch(batch)
    tail = None
    if spec.tail_rows and forward_batch.forward_mode.is_extend_without_speculative():
        dspark = batch.draft_layers is not None
        tail = late_layer_tail(forward_batch, spec.tail_rows, dspark=dspark)
    backend.prepare(forward_batch, tail)
    context = ForwardContext(attn_backend=backend)
    with (
        machine(spec, mode, min_tokens),
        forward_context(context, forward_batch=forward_batch),
        torch.inference_mode(),
    ):
        output = model(forward_batch.input_ids, forward_batch.positions, forward_batch, None)
    aux = None
    if batch.draft_layers is not None:
        output, aux = output
    elif tail is not None:
        # Rows outside the tail are left uninitialized.
        output = tuple(tail.real_rows(rows) for rows in output)
    source_x = backend.recorded.source_x
    return Output(
        hidden=output[0],
        residual=output[1],
        aux=aux,
        source_x=source_x[0] if source_x else None,
        caches=backend.cache_digest(),
        calls=backend.recorded.calls,
    )
