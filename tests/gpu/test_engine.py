"""Promise: the real engine (attention, experts, NCCL, KV cache) with sequence-parallel prefill against itself without.

At TP2 a sum has two terms and one order, so every mode equals off bit for bit: logits and every KV byte. From TP4 on,
exact equals off, and sharded equals transport.
"""

import pytest
from scenarios import MODES, SCENARIOS, Engines, assert_same
from visible import WORLDS, needs

pytestmark = needs(2)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda w: f"tp{w}")
def engines(request, tmp_path_factory):
    running = Engines(tmp_path_factory.mktemp(f"tp{request.param}"), request.param)
    yield running
    running.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", MODES[1:])
def test_equals_off(engines, mode, scenario):
    if engines.arms["off"].world > 2 and mode != "exact":
        pytest.skip("from TP4 on, a native reduce-scatter may add in another order than an all-reduce")
    assert_same(engines.run(mode, scenario), engines.run("off", scenario))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sharded_equals_transport(engines, scenario):
    assert_same(engines.run("sharded", scenario), engines.run("transport", scenario))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_repeats_itself(engines, mode):
    assert_same(engines.run(mode, "uneven_batch"), engines.run_again(mode, "uneven_batch"))


def test_control_another_prompt_differs(engines):
    """The comparison sees a difference: one token of one prompt."""
    with pytest.raises(AssertionError, match="differ"):
        assert_same(engines.run("off", "2048_rows"), engines.run("off", "2049_rows"))


def names_of(engines, mode, rows):
    return {c["name"] for c in engines.arms[mode].call("collectives", rows, repeats=1)[0]}


def test_every_mode_moves_what_it_says(engines):
    """From the threshold on, each mode's own collectives run; below it, exactly the stock ones."""
    for mode in MODES:
        below = engines.arms[mode].call("collectives", 2047, repeats=1)[0]
        stock = engines.arms["off"].call("collectives", 2047, repeats=1)[0]
        assert [(c["name"], c["shapes"], c["count"]) for c in below] == [
            (c["name"], c["shapes"], c["count"]) for c in stock
        ], mode
    assert "reduce_scatter_tensor" not in names_of(engines, "off", 2048)
    for mode in ("transport", "sharded"):
        assert {"reduce_scatter_tensor", "all_gather_into_tensor"} <= names_of(engines, mode, 2048), mode
    assert "reduce_scatter_tensor" not in names_of(engines, "exact", 2048)
    assert "all_gather_into_tensor" in names_of(engines, "exact", 2048)


def test_the_late_layers_run_on_tails_as_in_the_released_model(engines):
    for mode, said in engines.said.items():
        assert said["late_layer_start"] == said["layers"] // 2, mode


class TestReleasedWeights:
    """Weights in the released formats: dense e4m3 in 32 x 32 blocks with power-of-two scales, experts MXFP4.

    SM90: block-32 DeepGEMM for dense, Marlin (W4A16) here for the experts. SM100 and SM12x serve dense weights as MXFP8
    and experts through FlashInfer; read from the gates, not run here.
    """

    @pytest.fixture(scope="class")
    def engines(self, tmp_path_factory):
        running = Engines(
            tmp_path_factory.mktemp("released"),
            2,
            quantized=True,
            modes=("off", "exact", "sharded"),
            arguments=("--moe-runner-backend", "marlin"),
            environment={"SGLANG_DSV4_FP4_EXPERTS": "1", "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"},
        )
        yield running
        running.close()

    @pytest.mark.parametrize("scenario", ("uneven_batch", "long_prompt_in_chunks", "4096_rows"))
    @pytest.mark.parametrize("mode", ("exact", "sharded"))
    def test_equals_off(self, engines, mode, scenario):
        assert_same(engines.run(mode, scenario), engines.run("off", scenario))
