"""How many GPUs this machine shows, and the marks for tests that need some."""

import pytest
import torch

GPUS = torch.cuda.device_count()
WORLDS = [w for w in (2, 4, 8) if w <= GPUS] or [2]
"""Tensor-parallel sizes to run; the smallest one, skipped, where none fits."""


def needs(count: int):
    return pytest.mark.skipif(GPUS < count, reason=f"needs {count} CUDA GPUs, {GPUS} visible")
