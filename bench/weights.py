"""Random weights for a model that has none: of a working scale, repeatable, different on every rank that holds a shard.

Upstream's dummy weights (within 1e-3, one seed for every parameter) give activations near zero and the same partial sum
on every rank, which hides a missing or a doubled sum.
"""

import zlib

import torch

SHARDED = ("embed_tokens", "lm_head", "wq_b", "wo_a", "wo_b", "experts", "gate_up_proj", "down_proj", "engram.embed")
"""Parameters of which a rank holds a part: drawn per rank. All others are drawn alike everywhere."""
UNIT = ("norm", "q_weight", "k_weight")
DENSE_SPAN = 0.035


def exponent(name: str) -> int:
    """The power of two that a quantized parameter's scales hold: e4m3 weights in +-1 and MXFP4 weights in +-6."""
    if "experts" in name:
        return -7
    return -5 if "scale_inv" in name else 0


def draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill one parameter in place: floating-point, e4m3, packed MXFP4 (int8 or uint8), or their scales."""
    if tensor.dtype == torch.float8_e8m0fnu or (tensor.dtype == torch.uint8 and "scale" in name):
        tensor.view(torch.uint8).fill_(127 + exponent(name))
    elif tensor.dtype in (torch.uint8, torch.int8):
        tensor.view(torch.uint8).random_(0, 256, generator=generator)
    elif torch.finfo(tensor.dtype).bits == 8:
        for piece in tensor.view(-1).split(1 << 26):  # no 8-bit uniform_ exists
            wide = torch.empty(piece.shape, device=piece.device, dtype=torch.float16)
            piece.copy_(wide.uniform_(-1, 1, generator=generator))
    elif "scale_inv" in name:
        tensor.fill_(2.0 ** exponent(name))
    elif any(word in name for word in UNIT):
        tensor.uniform_(0.5, 1.5, generator=generator)
    elif "hc_" in name and name.endswith("scale"):
        tensor.fill_(0.03)
    elif "hc_" in name:
        span = 3.0 if name.endswith("base") else 0.04
        tensor.uniform_(-span, span, generator=generator)
    else:
        tensor.uniform_(-DENSE_SPAN, DENSE_SPAN, generator=generator)


def draw_all(model: torch.nn.Module, **_) -> None:
    """What `--load-format dummy` calls instead of upstream's: every parameter by its name and, if sharded, the rank."""
    from sglang.srt.runtime_context import get_parallel

    rank = get_parallel().tp_rank
    for name, tensor in model.state_dict().items():
        if not (tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.int8)):
            continue
        own = rank + 1 if any(word in name for word in SHARDED) else 0
        generator = torch.Generator(device=tensor.device).manual_seed(zlib.crc32(f"{name} {own}".encode()))
        draw(name, tensor, generator)
