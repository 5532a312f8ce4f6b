"""Run one batch under several modes on every rank, and compare all that it leaves behind bit for bit."""

import functools
import hashlib

import torch
from model import BatchSpec, ModelSpec, environment, forward
from ranks import collectives, run_ranks

MODES = ("off", "transport", "sharded", "exact")
WORLDS = (2, 3, 4, 8)


def digest(tensor: torch.Tensor) -> str:
    """Shape, type and bytes."""
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.sha256(data).hexdigest()[:16]}"


def run_modes(rank, world, spec, batch, modes, variables):
    """{mode: ({tensor: digest}, whether all is finite, collectives)} of one rank, modes in turn in one process."""
    results = {}
    with environment(**dict(variables)):
        for mode in modes:
            with collectives() as moved:
                output = forward(spec, batch, mode)
            named = output.tensors()
            finite = all(bool(torch.isfinite(t.float()).all()) for t in named.values())
            results[mode] = ({name: digest(t) for name, t in named.items()}, finite, moved)
    return results


@functools.cache
def results(world: int, spec: ModelSpec, batch: BatchSpec, modes=MODES, variables=()):
    """`run_modes` by rank; kept, because several promises read the same forwards."""
    return run_ranks(world, run_modes, spec, batch, modes, variables)


def assert_entered(by_rank, mode: str) -> None:
    """The chunk ran sequence-parallel: otherwise its equality would prove nothing."""
    for rank, result in enumerate(by_rank):
        operations = {operation for operation, _, _ in result[mode][2]}
        assert operations - {"all_reduce"}, f"rank {rank}: no row was gathered under {mode}: the chunk ran stock"


def assert_same(by_rank, left: str, right: str) -> None:
    """Every tensor has the same bits on every rank under both modes, and is finite."""
    differ = []
    for rank, result in enumerate(by_rank):
        assert result[left][1] and result[right][1], f"rank {rank}: not finite"
        one, other = result[left][0], result[right][0]
        assert one.keys() == other.keys()
        differ += [f"rank {rank}: {name}" for name in one if one[name] != other[name]]
    assert not differ, f"{left} != {right}: {', '.join(differ[:12])} ({len(differ)} tensors)"


def assert_ranks_agree(by_rank, mode: str) -> None:
    """What every rank holds whole is the same on all of them."""
    first = by_rank[0][mode][0]
    for rank, result in enumerate(by_rank[1:], 1):
        differ = [name for name in first if result[mode][0][name] != first[name]]
        assert not differ, f"rank {rank} differs from rank 0 under {mode}: {', '.join(differ)}"
