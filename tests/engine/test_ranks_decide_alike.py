"""Promise: a rank that decides otherwise is named, on every rank, instead of hanging all of them."""

import pytest
from chunks import STANDARD
from model import BatchSpec, environment, forward
from ranks import run_ranks

BATCH = BatchSpec((270,))


def one_decides_otherwise(rank, world, odd, odd_mode, odd_min_tokens):
    """The error on this rank, and whether the ranks still work together after it."""
    mode, min_tokens = (odd_mode, odd_min_tokens) if rank == odd else ("sharded", 256)
    with environment(SGLANG_PREFILL_SP_CHECK_RANKS="1"):
        try:
            forward(STANDARD, BATCH, mode, min_tokens=min_tokens)
            error = None
        except RuntimeError as raised:
            error = str(raised)
        forward(STANDARD, BATCH, "sharded", min_tokens=256)
    return error


@pytest.mark.parametrize("world", (2, 3, 8))
@pytest.mark.parametrize(
    ("odd_mode", "odd_min_tokens", "decision"),
    (
        ("sharded", 4096, "stock"),
        ("transport", 256, "270 rows, residual unsharded"),
    ),
)
def test_the_odd_rank_is_named(world, odd_mode, odd_min_tokens, decision):
    errors = run_ranks(world, one_decides_otherwise, world - 1, odd_mode, odd_min_tokens, timeout=60)
    for error in errors:
        assert error is not None, "a rank went on alone"
        assert f"{decision} on rank(s) {world - 1}" in error
        others = ", ".join(map(str, range(world - 1)))
        assert f"270 rows, residual sharded on rank(s) {others}" in error


def test_agreeing_ranks_are_not_disturbed():
    assert run_ranks(4, one_decides_otherwise, 2, "sharded", 256) == [None] * 4
