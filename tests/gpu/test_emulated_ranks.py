"""Promise: two, four and eight ranks, on one GPU, through the real engine: at two ranks every mode equals off; beyond,
exact equals off and sharded equals transport.

The ranks are processes that share GPU 0; their collectives go through CUDA IPC (`bench.one_gpu`), which sums in ring
order, so that an all-reduce and a reduce-scatter differ in bits as they may over NCCL.
"""

import pytest
import torch
from scenarios import Engines, asked_for, assert_same, assert_same_weights, differences
from visible import needs

from bench.trace import first_difference

pytestmark = needs(1)
SCENARIOS = ("uneven_batch", "long_prompt_in_chunks", "prefix_hit", "prefill_then_decode", "2049_rows")
ARMS = {
    2: ("off", "transport", "exact", "sharded", "fault"),
    4: ("off", "transport", "exact", "sharded", "ordered"),
    8: ("off", "transport", "exact", "sharded"),
}
SMALL = {"layers": 6, "experts": 16}
RANKS_AT_ONCE = 16
PER_RANK_GIB, WEIGHTS_GIB = 4, 10
"""A rank's memory: context, staging and activations, and its share of the weights."""


@pytest.fixture(scope="module")
def started():
    """The engines of each size."""
    return {}


@pytest.fixture
def engines(request, world, started, tmp_path_factory):
    """The engines of `world` ranks: the arms and scenarios that the selected tests name, run when a test first asks."""
    if world not in started:
        free = torch.cuda.mem_get_info()[0] / 2**30
        arm = PER_RANK_GIB * world + WEIGHTS_GIB
        if arm > free:
            pytest.skip(f"{world} ranks on one GPU need {arm} GiB, {free:.0f} GiB are free")
        started[world] = Engines(
            tmp_path_factory.mktemp(f"emulated{world}-"),
            world,
            asked_for(request, ARMS[world], ("name", "reference"), world=world),
            asked_for(request, SCENARIOS, ("scenario",), world=world),
            size=("--chunked-prefill-size", "8192", "--max-total-tokens", "16384"),
            at_once=max(1, min(RANKS_AT_ONCE // world, int(free / arm))),
            one_gpu=True,
            **SMALL,
        )
    return started[world]


def pairs():
    """(world, arm, the arm it must equal)"""
    at_two = [(2, mode, "off") for mode in ("transport", "exact", "sharded")]
    beyond = [(w, *pair) for w in (4, 8) for pair in (("exact", "off"), ("sharded", "transport"))]
    return [pytest.param(*p, id=f"tp{p[0]}-{p[1]}-{p[2]}") for p in at_two + beyond]


def arms(sizes=ARMS, reference=None):
    """(world, arm), and with `reference` (world, arm, reference)"""
    more = (reference,) if reference else ()
    return [pytest.param(w, n, *more, id=f"tp{w}-{n}") for w in sizes for n in ARMS[w] if n != reference]


@pytest.mark.parametrize("world, name, reference", arms(reference="off"))
def test_arms_hold_the_same_weights(engines, world, name, reference):
    assert_same_weights(engines, name, reference)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("world, name", arms())
def test_a_run_repeats_itself(engines, world, name, scenario):
    """The second run also takes the projected path: with it, the bits of the first."""
    first, second = engines.of(name, scenario)
    assert_same(second, first)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("world, name, reference", pairs())
def test_equals(engines, world, name, reference, scenario):
    for run in engines.of(name, scenario):
        assert_same(run, engines.of(reference, scenario)[0])


@pytest.mark.parametrize("scenario", ["uneven_batch"])
@pytest.mark.parametrize("world, name, reference", [pytest.param(4, "sharded", "off", id="tp4-sharded-off")])
def test_control_the_sums_differ_by_order(engines, world, name, reference, scenario):
    """At four ranks sharded does not equal off: so exact's equality is no accident of these weights."""
    found = differences(engines.of(name, scenario)[0], engines.of(reference, scenario)[0])
    assert any("logits differ" in line for line in found), found


@pytest.mark.parametrize("scenario", ["uneven_batch"])
@pytest.mark.parametrize("world, name, reference", [pytest.param(2, "fault", "sharded", id="tp2-fault-sharded")])
def test_one_ulp_in_one_row_is_caught_and_placed(engines, world, name, reference, scenario):
    """Rank 1 returns its sixth row off by one bit from every reduce-scatter: first seen where that row enters the next
    sublayer, layer 0's MoE."""
    faulty, sound = engines.of(name, scenario)[0], engines.of(reference, scenario)[0]
    assert differences(faulty, sound)
    row = (3367 + 1) // 2 + 5
    where = first_difference(faulty.noted, sound.noted)
    assert where == f"forward 0, layer 0 MoE input, rank 0: 1 of 3367 rows differ, first row {row}"
