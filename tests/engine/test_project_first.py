"""Promise: a projection that runs before the gather leaves every bit as it was, and a read of the input it replaces
poisons the result."""

from unittest.mock import patch

import pytest
from agreement import WORLDS, digest
from chunks import SHORT_TAIL
from model import BatchSpec, build_model, environment, forward
from ranks import collectives, run_ranks

BATCH = BatchSpec((150, 131))
INPUT_BYTES, PROJECTED_BYTES = 64 * 2, (32 + 16) * 2


def three_times(rank, world, mode, variables):
    """[(digests, gathers of projected columns)] of three chunks of one size on a model that never saw the size."""
    for layer in build_model(SHORT_TAIL).layers:
        layer.wqkv_a_check.__init__(layer.wqkv_a_check.what, layer.wqkv_a_check.first_sighting)
    found = []
    with environment(**variables):
        for _ in range(3):
            with collectives() as moved:
                output = forward(SHORT_TAIL, BATCH, mode)
            gathers = [size for operation, _, size in moved if operation == "all_gather_into_tensor"]
            named = {name: digest(value) for name, value in output.tensors().items()}
            found.append((named, gathers.count(PROJECTED_BYTES)))
    return found


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("mode", "reference"), (("exact", "off"), ("sharded", "transport")))
def test_projecting_first_changes_no_bit(world, mode, reference):
    for expected, got in zip(
        run_ranks(world, three_times, reference, {}), run_ranks(world, three_times, mode, {}), strict=True
    ):
        assert [named for named, _ in got] == [named for named, _ in expected]
        assert [count for _, count in expected] == [0, 0, 0]
        # Layers 1 to 3 read their input through wqkv_a alone; a size that comes once is not checked.
        assert [count for _, count in got] == [0, 3, 3]


@pytest.mark.parametrize("world", (2, 4))
def test_it_can_be_turned_off(world):
    for found in run_ranks(world, three_times, "sharded", dict(SGLANG_PREFILL_SP_PROJECT_FIRST="0")):
        assert [count for _, count in found] == [0, 0, 0]


def stray_read(rank, world):
    """Whether the result is finite when a layer whose compressor also reads the input claims that it does not."""
    attention = build_model(SHORT_TAIL).layers[0].self_attn
    with patch.object(attention, "reads_input_through_wqkv_a", lambda: True):
        outputs = [forward(SHORT_TAIL, BATCH, "sharded") for _ in range(2)]
    return bool(outputs[-1].hidden.isfinite().all())


def test_a_stray_read_of_the_replaced_input_shows():
    assert run_ranks(2, stray_read) == [False, False]
