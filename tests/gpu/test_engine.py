"""Promise: the real engine (attention, experts, NCCL, KV cache) with sequence-parallel prefill against itself without.

At TP2 a sum has two terms and one order, so every mode equals off bit for bit: logits and every KV page. From TP4 on,
exact equals off, sharded equals transport, and the order-fixed sum repeats itself.
"""

import pytest
from scenarios import MODES, SCENARIOS, SETUPS, Engines, asked_for, assert_same, assert_same_weights, differences
from visible import WORLDS, needs

pytestmark = needs(2)
ARMS = tuple(name for name in SETUPS if name != "fault")
THRESHOLD = 2048
QUESTIONS = {rows: (lambda arm, rows=rows: arm.call("collectives", rows, repeats=1)[0]) for rows in (2047, 2048)}


@pytest.fixture(scope="module", params=WORLDS, ids=lambda w: f"tp{w}")
def engines(request, tmp_path_factory):
    world = request.param
    scenarios = asked_for(request, SCENARIOS, ("scenario", "other"))
    return Engines(tmp_path_factory.mktemp(f"tp{world}-"), world, ARMS, scenarios, at_once=4, questions=QUESTIONS)


@pytest.mark.parametrize("name", ARMS[1:])
def test_arms_hold_the_same_weights(engines, name):
    assert_same_weights(engines, name, "off")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", ARMS)
def test_a_run_repeats_itself(engines, name, scenario):
    """The second run also takes the projected path: with it, the bits of the first."""
    first, second = engines.of(name, scenario)
    assert_same(second, first)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", ARMS[1:])
def test_equals_off(engines, name, scenario):
    if engines.world > 2 and name != "exact":
        pytest.skip("from TP4 on, a reduce-scatter may add in another order than an all-reduce")
    for run in engines.of(name, scenario):
        assert_same(run, engines.of("off", scenario)[0])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", ("sharded", "gathered"))
def test_sharded_equals_transport(engines, name, scenario):
    for run in engines.of(name, scenario):
        assert_same(run, engines.of("transport", scenario)[0])


@pytest.mark.parametrize("scenario, other", [("2048_rows", "2049_rows")])
def test_control_another_prompt_differs(engines, scenario, other):
    """The comparison sees a difference: one token more."""
    assert differences(engines.of("off", scenario)[0], engines.of("off", other)[0])


def moved(engines, name, rows):
    """(operation, shapes, count) of the collectives of one chunk."""
    engines.check(name)
    return [(c["name"], c["shapes"], c["count"]) for c in engines.answers[name][rows]]


@pytest.mark.parametrize("mode", MODES)
def test_below_the_threshold_the_stock_collectives_run(engines, mode):
    assert moved(engines, mode, THRESHOLD - 1) == moved(engines, "off", THRESHOLD - 1)


@pytest.mark.parametrize("mode", MODES)
def test_from_the_threshold_on_each_mode_moves_what_it_says(engines, mode):
    names = {operation for operation, _, _ in moved(engines, mode, THRESHOLD)}
    assert ("reduce_scatter_tensor" in names) == (mode in ("transport", "sharded"))
    assert "all_gather_into_tensor" in names or mode == "off"


def test_the_late_layers_run_on_tails_as_in_the_released_model(engines):
    for name, said in engines.said.items():
        assert said["late_layer_start"] == said["layers"] // 2, name
