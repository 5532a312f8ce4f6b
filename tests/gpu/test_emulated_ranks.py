"""Promise: four and eight ranks, on one GPU, through the real engine: exact equals off and sharded equals transport.

The ranks are processes that share GPU 0; their collectives go through CUDA IPC (`bench.one_gpu`), which sums in ring
order, so that an all-reduce and a reduce-scatter differ in bits as they may over NCCL.
"""

import pytest
from scenarios import Engines, assert_same
from visible import needs

from bench.one_gpu import ULP_FAULT

pytestmark = needs(1)
SCENARIOS = ("uneven_batch", "long_prompt_in_chunks", "prefix_hit", "2049_rows")
SMALL = {"layers": 6, "experts": 16}


@pytest.fixture(scope="module", params=(4, 8), ids=lambda w: f"tp{w}")
def engines(request, tmp_path_factory):
    running = Engines(tmp_path_factory.mktemp(f"emulated{request.param}"), request.param, one_gpu=True, **SMALL)
    yield running
    running.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exact_equals_off(engines, scenario):
    assert_same(engines.run("exact", scenario), engines.run("off", scenario))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sharded_equals_transport(engines, scenario):
    assert_same(engines.run("sharded", scenario), engines.run("transport", scenario))


def test_control_the_sums_differ_by_order(engines):
    """Sharded does not equal off here: so exact's equality is not an accident of these weights."""
    with pytest.raises(AssertionError, match="differ"):
        assert_same(engines.run("sharded", "uneven_batch"), engines.run("off", "uneven_batch"))


def test_one_ulp_in_one_row_is_caught(engines, tmp_path):
    faulty = Engines(
        tmp_path,
        engines.arms["sharded"].world,
        modes=("sharded",),
        environment={ULP_FAULT: "1"},
        one_gpu=True,
        **SMALL,
    )
    try:
        with pytest.raises(AssertionError, match="differ"):
            assert_same(faulty.run("sharded", "uneven_batch"), engines.run("sharded", "uneven_batch"))
    finally:
        faulty.close()
