"""Promise: two, four and eight ranks, on one GPU, through the real engine: at two ranks every mode equals off; beyond,
exact equals off and sharded equals transport.

The ranks are processes that share GPU 0; their collectives go through CUDA IPC (`bench.one_gpu`), which sums in ring
order, so that an all-reduce and a reduce-scatter differ in bits as they may over NCCL.
"""

import pytest
import torch
from scenarios import Engines, assert_same, assert_same_weights, differences
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
RANKS_AT_ONCE = 12
PER_RANK_GIB, WEIGHTS_GIB = 4, 10
"""A rank's memory: context, staging and activations, and its share of the weights."""


class Emulated:
    """The engines of each size, started when a test first asks."""

    def __init__(self, folders):
        self.folders, self.engines = folders, {}

    def __getitem__(self, world):
        if world not in self.engines:
            free = torch.cuda.mem_get_info()[0] / 2**30
            arm = PER_RANK_GIB * world + WEIGHTS_GIB
            if arm > free:
                pytest.skip(f"{world} ranks on one GPU need {arm} GiB, {free:.0f} GiB are free")
            self.engines[world] = Engines(
                self.folders.mktemp(f"emulated{world}-"),
                world,
                ARMS[world],
                SCENARIOS,
                size=("--chunked-prefill-size", "8192", "--max-total-tokens", "16384"),
                at_once=max(1, min(RANKS_AT_ONCE // world, int(free / arm))),
                one_gpu=True,
                **SMALL,
            )
        return self.engines[world]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return Emulated(tmp_path_factory)


def pairs():
    """(world, arm, the arm it must equal)"""
    at_two = [(2, mode, "off") for mode in ("transport", "exact", "sharded")]
    beyond = [(w, *pair) for w in (4, 8) for pair in (("exact", "off"), ("sharded", "transport"))]
    return [pytest.param(*p, id=f"tp{p[0]}-{p[1]}-{p[2]}") for p in at_two + beyond]


@pytest.mark.parametrize(
    "world, name", [pytest.param(w, name, id=f"tp{w}-{name}") for w in ARMS for name in ARMS[w][1:]]
)
def test_arms_hold_the_same_weights(emulated, world, name):
    assert_same_weights(emulated[world], name, "off")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("world, name", [pytest.param(w, name, id=f"tp{w}-{name}") for w in ARMS for name in ARMS[w]])
def test_a_run_repeats_itself(emulated, world, name, scenario):
    """The second run also takes the projected path: with it, the bits of the first."""
    first, second = emulated[world].of(name, scenario)
    assert_same(second, first)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("world, name, reference", pairs())
def test_equals(emulated, world, name, reference, scenario):
    engines = emulated[world]
    for run in engines.of(name, scenario):
        assert_same(run, engines.of(reference, scenario)[0])


def test_tp4_control_the_sums_differ_by_order(emulated):
    """At four ranks sharded does not equal off: so exact's equality is no accident of these weights."""
    engines = emulated[4]
    found = differences(engines.of("sharded", "uneven_batch")[0], engines.of("off", "uneven_batch")[0])
    assert any("logits differ" in line for line in found), found


def test_tp2_one_ulp_in_one_row_is_caught_and_placed(emulated):
    """Rank 1 returns its sixth row off by one bit from every reduce-scatter: first seen where that row enters the next
    sublayer, layer 0's MoE."""
    engines = emulated[2]
    faulty, sound = engines.of("fault", "uneven_batch")[0], engines.of("sharded", "uneven_batch")[0]
    assert differences(faulty, sound)
    row = (3367 + 1) // 2 + 5
    where = first_difference(faulty.noted, sound.noted)
    assert where == f"forward 0, layer 0 MoE input, rank 0: 1 of 3367 rows differ, first row {row}"
