"""Checksums of tensors that say which row differs, and agree between processes and devices."""

import torch

PIECE_WORDS = 1 << 24
"""64-bit words that one step of a checksum reads: its temporaries stay at 256 MiB."""


def row_bytes(t: torch.Tensor) -> torch.Tensor:
    """[rows, bytes] of a contiguous tensor, as a view: dimension 0 is the row, a scalar is one."""
    return t.view(t.shape[0] if t.dim() else 1, -1).view(torch.uint8)


def row_checksums(t: torch.Tensor) -> torch.Tensor:
    """64 bits per row of dimension 0, [rows] int64: the sum of (odd multiplier of the place) * word, modulo 2 ** 64.

    Any one word that changes changes its row's sum.
    """
    if not t.numel():
        return torch.zeros(t.shape[0], dtype=torch.int64, device=t.device)
    raw = row_bytes(t.detach().contiguous())
    if rest := -raw.shape[1] % 8:
        raw = torch.nn.functional.pad(raw, (0, rest))
    words = raw.view(torch.int64)
    place = torch.arange(words.shape[1], device=t.device) * -7046029254386353131 | 1
    return torch.cat([(piece * place).sum(1) for piece in words.split(max(1, PIECE_WORDS // words.shape[1]))])


def checksum(t: torch.Tensor) -> int:
    """64 bits over every byte and its place."""
    return int(row_checksums(row_checksums(t.reshape(t.shape or (1,))).view(1, -1)))
