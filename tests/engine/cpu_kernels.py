"""CPU forms of the GPU kernels that the model launches, behind upstream's names.

Only launches are replaced: the wrapper functions around them, with every choice
they make from the row count, run for real. Every form is row-local, so a row has
the same bits alone and in any batch, unless two batches launch different variants
(another kernel, another tile height, another split): those differ visibly in every
row, because a real pair of variants differs at least now and then. So a gate keyed
on a shard's rows, where the chunk's would have chosen another variant, changes bits.

``launches()`` lists the variants launched since the last call.
"""

import functools
import sys
import zlib
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from sglang.test.kernels.mhc import hc_split_sinkhorn_torch

_launches: list[tuple] = []

# Modules that ask ``tensor.is_cuda`` before they dispatch to a kernel below.
_GPU_DISPATCHERS = frozenset({"sglang.srt.models.deepseek_v4_mhc"})

_odd_gemm_rows: int | None = None


def launches() -> list[tuple]:
    """(kernel, variant facts...) launched since the last call, in order."""
    seen = list(_launches)
    _launches.clear()
    return seen


def _variant(value: torch.Tensor, *facts) -> torch.Tensor:
    """``value`` in fp32 with the rounding of this kernel variant: its own, 2^-10 to
    2^-4 away from exact, so two variants never agree on a row."""
    _launches.append(facts)
    step = 1 + zlib.crc32(repr(facts).encode()) % 63
    return value.float() * (1 + step / 1024)


class _Launch:
    """Stands where a Triton kernel does: ``kernel[grid](*args, **meta)``."""

    def __init__(self, form):
        self.form = form

    def __getitem__(self, grid):
        return self.form


# --- GEMM ------------------------------------------------------------------------


@contextmanager
def odd_gemm(rows: int):
    """A GEMM of exactly ``rows`` rows rounds otherwise, as a library's does when it picks its tactic by M. What ran is
    in ``launches()`` as ("gemm", rows, columns)."""
    global _odd_gemm_rows
    _odd_gemm_rows = rows
    try:
        yield
    finally:
        _odd_gemm_rows = None


def linear(x: torch.Tensor, weight: torch.Tensor, bias=None) -> torch.Tensor:
    """F.linear summed in fp64: bf16 products are exact there, so no row's bits
    depend on the rows around it or on this CPU's instruction set."""
    y = torch.matmul(x.double(), weight.double().t())
    if bias is not None:
        y = y + bias.double()
    rows = x.numel() // x.shape[-1]
    if rows == _odd_gemm_rows:
        y = _variant(y, "gemm", rows, weight.shape[0])
    return y.to(x.dtype)


def _in_fp64(function):
    return lambda x: function(x.double()).to(x.dtype)


def linear_bf16_fp32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear(x.double(), weight.double()).float()


# --- mix stats -------------------------------------------------------------------


def _write_partials(x, weight, mix, square, facts) -> None:
    """Slice s of [S, M, MIX] and [S, M] from columns s of x and weight."""
    slices = mix.shape[0]
    xs = x.double().unflatten(1, (slices, -1))
    ws = weight.double().unflatten(1, (slices, -1))
    mix.copy_(_variant(torch.einsum("msk,nsk->smn", xs, ws), *facts))
    square.copy_(xs.square().sum(-1).t())


def _mix_stats_partial(x, w, part_mix, part_sq, m, k, *_, BLOCK_M, **meta) -> None:
    _write_partials(x, w, part_mix, part_sq, ("mix_stats", BLOCK_M))


def _mix_stats_bf16x3(x, hi, mid, lo, mix, sq, m, *, BLOCK_M, **meta) -> None:
    weight = (hi.float() + mid.float()) + lo.float()
    _write_partials(x, weight, mix, sq, ("mix_stats_bf16x3", BLOCK_M))


def _tf32_hc_prenorm_gemm(x, weight, mix, sq, num_splits=None) -> None:
    if num_splits is None:
        mix, sq = mix.unsqueeze(0), sq.unsqueeze(0)
    _write_partials(x, weight, mix, sq, ("tf32_hc_prenorm",))


def _mixes(part_mix, part_sq, inv_k, eps, residual=None) -> torch.Tensor:
    if residual is not None:
        part_mix = part_mix + residual
    # In fp64: an fp32 sum over slices adds in an order that depends on the rows.
    rsqrt = torch.rsqrt(part_sq.double().sum(0) * inv_k + eps)
    return (part_mix.double().sum(0) * rsqrt[:, None]).float()


def _mix_stats_reduce(part_mix, part_sq, mixes, m, inv_k, eps, **meta) -> None:
    mixes.copy_(_mixes(part_mix, part_sq, inv_k, eps))


def _mix_reduce_sinkhorn(
    part_mix,
    part_sq,
    scale,
    base,
    pre,
    post,
    comb,
    m,
    inv_k,
    rms_eps,
    *,
    HC,
    ITERS,
    EPS,
    part_mix_residual_ptr=None,
    **meta,
) -> None:
    mixes = _mixes(part_mix, part_sq, inv_k, rms_eps, part_mix_residual_ptr)
    _write_triplet(mixes, scale, base, pre, post, comb, HC, ITERS, EPS)


def _write_triplet(mixes, scale, base, pre, post, comb, hc, iters, eps) -> None:
    triplet = hc_split_sinkhorn_torch(mixes.unsqueeze(1), scale, base, hc, iters, eps)
    for out, value in zip((pre, post, comb), triplet, strict=True):
        out.copy_(value.squeeze(1))


def _split_sinkhorn_kernel(hc, iters, eps):
    def run(mixes, scale, base, pre, post, comb):
        _write_triplet(mixes, scale, base, pre, post, comb, hc, iters, eps)

    return run


# --- combine and norm ------------------------------------------------------------


def _combined(x, pre, hc: int) -> torch.Tensor:
    """[M, hc * H] and [M, hc] -> sum_k pre[k] * x[k] in fp32, streams in order."""
    streams = x.float().unflatten(1, (hc, -1))
    value = pre[:, :1].float() * streams[:, 0]
    for k in range(1, hc):
        value += pre[:, k : k + 1].float() * streams[:, k]
    return value


def _mhc_combine(x, pre, y, h, *strides, HC, **meta) -> None:
    y.copy_(_variant(_combined(x, pre, HC), "mhc_combine"))


def _rms_normed(value, weight, eps) -> torch.Tensor:
    value = value.to(torch.bfloat16).float()
    variance = value.square().mean(-1, keepdim=True)
    return value * torch.rsqrt(variance + eps) * weight.float()


def _hc_combine_norm(x, pre, weight, y, sx, sp, eps, parts, **meta) -> None:
    normed = _rms_normed(_combined(x, pre, 4), weight, eps)
    y.copy_(_variant(normed, "combine_norm", parts))


def _hc_combine_norm_prefill(x, pre, weight, y, sx, sp, eps, **meta) -> None:
    normed = _rms_normed(_combined(x, pre, 4), weight, eps)
    y.copy_(_variant(normed, "combine_norm_prefill"))


# --- post ------------------------------------------------------------------------


def _updated(x, residual, post, comb) -> torch.Tensor:
    """``post[i] * x + sum_j comb[j][i] * R[j]`` in fp32, terms in that order."""
    value = post.unsqueeze(-1) * x.float().unsqueeze(1)
    for j in range(residual.shape[1]):
        value += comb[:, j].unsqueeze(-1) * residual[:, j : j + 1].float()
    return value


def _mhc_post_tilelang(comb, residual, post, x, out, hc, hidden, *, num_h_blocks) -> None:
    value = _updated(x, residual, post, comb)
    out.copy_(_variant(value, "mhc_post", num_h_blocks))


def _mhc_post_split_h(x, residual, post, comb, out, *, B, **meta) -> None:
    value = _updated(x, residual, post, comb)
    out.copy_(_variant(value, "mhc_post_split_h", B))


def _mhc_post_combine_norm_prefill(x, residual, post, comb, pre, weight, updated, normalized, eps) -> None:
    value = _updated(x, residual, post, comb)
    updated.copy_(_variant(value, "mhc_post_combine_norm_prefill"))
    normed = _rms_normed(_combined(updated.flatten(1), pre, 4), weight, eps)
    normalized.copy_(normed)


# --- rotary embedding ------------------------------------------------------------


def _rope_inplace(q, k, freqs_cis, *, positions, inverse=False) -> None:
    from sglang.srt.layers.attention.dsv4.dsv41_sparse import rope_tail

    assert k is None
    q.copy_(rope_tail(q, freqs_cis[positions], q.shape[-1], inverse))


def _q_norm_rope(q, q_out, eps, freqs_cis, positions) -> None:
    from sglang.srt.layers.attention.dsv4.dsv41_sparse import rope_tail

    assert eps is None, "V4.1 queries have no head norm"
    q_out.copy_(rope_tail(q, freqs_cis[positions], 2 * freqs_cis.shape[-1]))


# --- installation ----------------------------------------------------------------


@functools.cache
def install() -> None:
    """Put every form in its kernel's place; once per rank, on the CPU only."""
    from sglang.kernels.ops.gemm import bf16_fp32
    from sglang.kernels.ops.layernorm import (
        hc_combine_norm,
        mhc,
        mhc_post_combine_norm_prefill,
        mhc_post_split_h,
    )
    from sglang.srt.layers.attention.dsv4 import dsv41_sparse
    from sglang.srt.layers.deep_gemm_wrapper import entrypoint
    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.layers.rotary_embedding import base
    from sglang.srt.models import deepseek_v4

    # A CPU loop's vectorized body and its scalar end round these differently, so a
    # row's bits would depend on where in the batch it stands.
    torch.sigmoid, torch.exp = _in_fp64(torch.sigmoid), _in_fp64(torch.exp)
    F.linear = linear
    bf16_fp32.linear_bf16_fp32 = dsv41_sparse.linear_bf16_fp32 = linear_bf16_fp32

    mhc._hc_mix_stats_partial_kernel = _Launch(_mix_stats_partial)
    mhc._hc_mix_stats_reduce_kernel = _Launch(_mix_stats_reduce)
    mhc._hc_mix_stats_bf16x3_kernel = _Launch(_mix_stats_bf16x3)
    mhc._hc_mix_reduce_sinkhorn_kernel = _Launch(_mix_reduce_sinkhorn)
    mhc._mhc_combine_kernel = _Launch(_mhc_combine)
    mhc.hc_split_sinkhorn_kernel = _split_sinkhorn_kernel
    mhc.mhc_post_tilelang = _mhc_post_tilelang
    entrypoint.tf32_hc_prenorm_gemm = _tf32_hc_prenorm_gemm
    hc_combine_norm._hc_combine_norm = _Launch(_hc_combine_norm)
    hc_combine_norm._hc_combine_norm_prefill = _Launch(_hc_combine_norm_prefill)
    mhc_post_split_h._mhc_post_split_h_kernel = _Launch(_mhc_post_split_h)
    mhc_post_combine_norm_prefill._mhc_post_combine_norm_prefill = _mhc_post_combine_norm_prefill

    # The rotary table, without the GPU kernel that this path never calls.
    base._is_cpu = True
    deepseek_v4._fused_wo_a_arch_supported = lambda: False
    deepseek_v4.fused_rope_inplace = _rope_inplace
    deepseek_v4.fused_q_norm_rope = _q_norm_rope

    native = fused_moe_native.moe_forward_native
    fused_moe_native.moe_forward_native = lambda layer, x, *rest: native(layer, x, *rest) if len(x) else x.clone()

    # The CUDA model asks for streams, which run in order on the CPU.
    torch.get_device_module = lambda device=None: torch.cpu

    real_is_cuda = torch.Tensor.is_cuda

    def is_cuda(tensor) -> bool:
        caller = sys._getframe(1).f_globals.get("__name__")
        return caller in _GPU_DISPATCHERS or real_is_cuda.__get__(tensor)

    torch.Tensor.is_cuda = property(is_cuda)
