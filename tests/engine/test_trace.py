"""Promise: two engines' traces say where they part: the forward, the place and the first row; and two processes agree
on what an untouched KV buffer is.
"""

import numpy
import pytest
import torch
from chunks import STANDARD
from model import BatchSpec, build_model, forward
from ranks import run_ranks

from bench.checksum import checksum, row_bytes, row_checksums
from bench.rank import blank_row
from bench.trace import first_difference, note_forwards

ROWS, WORLD = 11, 4
SHARD = 3
SITES = ("embedding", "layer 0 attention input", "layer 0 output of the rank's heads", "layer 0 MoE input")
EQUAL = "what entered attention and the MoE is equal everywhere: the difference arises elsewhere"


def noted(values, sharded=()):
    """By rank, what `Rank.noted` gives: `values` by place, the rank's heads' output different on every rank."""
    ranks = []
    for rank in range(WORLD):
        own = []
        for site, value in values.items():
            rows = value + rank if "heads" in site else value
            if site in sharded:
                rows = torch.nn.functional.pad(rows, (0, 0, 0, WORLD * SHARD - ROWS))[rank * SHARD :][:SHARD]
            own.append((site, row_checksums(rows).numpy()))
        ranks.append(own)
    return ranks


@pytest.fixture
def values():
    gen = torch.Generator().manual_seed(3)
    return {site: torch.randn(ROWS, 64, generator=gen, dtype=torch.bfloat16) for site in SITES}


@pytest.mark.parametrize("sharded", ((), ("layer 0 MoE input",), ("embedding", "layer 0 MoE input")))
def test_equal_runs_are_equal_whatever_is_sharded(values, sharded):
    assert first_difference(noted(values, sharded), noted(values)) == EQUAL


@pytest.mark.parametrize("sharded", (False, True))
def test_one_bit_is_placed(values, sharded):
    other = {site: value.clone() for site, value in values.items()}
    other["layer 0 MoE input"][7, 63].view(torch.int16).bitwise_xor_(1)
    found = first_difference(noted(other, ("layer 0 MoE input",) if sharded else ()), noted(values))
    where = "the shards" if sharded else "rank 0"
    assert found == f"forward 0, layer 0 MoE input, {where}: 1 of 11 rows differ, first row 7"


def test_the_first_of_two_differences_is_named_and_its_rank(values):
    one, other = noted(values), noted(values)
    other[2][2][1][4] += 1
    other[0][3][1][0] += 1
    expected = "forward 0, layer 0 output of the rank's heads, rank 2: 1 of 11 rows differ, first row 4"
    assert first_difference(one, other) == expected


def test_a_placeholder_is_passed_over_and_other_parts_are_said(values):
    one, other = noted(values), noted(values)
    for rank in other:
        rank[1] = (rank[1][0], None)
    assert first_difference(one, other) == EQUAL
    for rank in other:
        rank[3] = ("layer 1 MoE input", rank[3][1])
    assert first_difference(one, other).startswith("forward 0: the arms run different parts: layer 0 MoE input, layer")


@pytest.mark.parametrize(
    "dtype, shape",
    [
        (torch.bfloat16, (5, 7)),
        (torch.uint8, (3, 13)),
        (torch.float8_e4m3fn, (4, 2, 9)),
        (torch.float32, (6,)),
        (torch.complex64, (3, 4)),
    ],
)
def test_every_byte_counts(dtype, shape):
    t = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8).view(dtype)
    sums, whole = row_checksums(t), checksum(t)
    for row in range(shape[0]):
        for byte in range(row_bytes(t).shape[1]):
            changed = t.clone()
            row_bytes(changed)[row, byte] ^= 1
            assert numpy.flatnonzero(row_checksums(changed) != sums).tolist() == [row]
            assert checksum(changed) != whole


def test_scalars_and_no_rows_have_checksums():
    assert checksum(torch.tensor(1.5)) != checksum(torch.tensor(2.5))
    assert row_checksums(torch.empty(0, 4)).tolist() == []


def test_a_buffer_starts_alike_in_every_process():
    state = torch.zeros(9, 8)
    state[:, 4:] = -torch.inf
    assert blank_row(state).view(torch.float32).tolist() == [[0.0] * 4 + [-torch.inf] * 4]
    assert not blank_row(torch.zeros(4, 16, dtype=torch.uint8)).any()
    garbage = torch.rand(9, 8)
    assert not blank_row(garbage).any()


BATCH = BatchSpec((200, 50, 131))


def traced(rank, world, modes, fault):
    """By mode, what this rank notes of one forward of the real model; `fault` moves one bit of what reaches layer 2."""
    model, results = build_model(STANDARD), {}

    def flip(_, args, kwargs):
        kwargs["hidden_states"].view(torch.int16).view(-1)[0] ^= 1

    for mode in modes:
        notes = []
        handles = note_forwards(model, notes)
        if fault:
            handles.append(model.layers[2].register_forward_pre_hook(flip, with_kwargs=True))
        try:
            forward(STANDARD, BATCH, mode)
        finally:
            for handle in handles:
                handle.remove()
        results[mode] = [(site, None if sums is None else sums.numpy()) for site, sums in notes]
    return results


def by_rank(results, mode):
    return [result[mode] for result in results]


@pytest.mark.parametrize("world", (2, 4))
def test_the_real_model_is_noted_alike_in_every_mode(world):
    results = run_ranks(world, traced, ("off", "exact", "sharded", "transport"), False)
    off = by_rank(results, "off")
    assert len(off[0]) == 1 + 6 * 4 + 1
    assert all(sums is not None for _, sums in off[0])
    assert first_difference(by_rank(results, "exact"), off) == EQUAL
    assert first_difference(by_rank(results, "sharded"), by_rank(results, "transport")) == EQUAL


def test_a_bit_in_the_real_model_is_placed():
    sound = run_ranks(2, traced, ("sharded",), False)
    faulty = run_ranks(2, traced, ("sharded",), True)
    found = first_difference(by_rank(faulty, "sharded"), by_rank(sound, "sharded"))
    assert found.startswith("forward 0, layer 2 "), found
