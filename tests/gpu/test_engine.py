"""Promise: the real engine (attention, experts, NCCL, KV cache) with sequence-parallel prefill against itself without.

At TP2 a sum has two terms and one order, so every mode equals off bit for bit: logits and every KV byte. From TP4 on,
exact equals off, and sharded equals transport.
"""

import numpy
import pytest
from visible import WORLDS, needs

from bench import model
from bench.engine import BF16_EXPERTS, Arm

MODES = ("off", "transport", "exact", "sharded")
CHUNK = ("--chunked-prefill-size", "16384", "--max-total-tokens", "65536")
pytestmark = needs(2)


def request(name, seed, tokens, end=None, **prefix):
    return {"name": name, "seed": seed, "tokens": tokens, "end": tokens if end is None else end, **prefix}


UNEVEN = [request("a", 1, 2500), request("b", 2, 37), request("c", 3, 700), request("d", 4, 129), request("e", 5, 1)]


def one_prompt(arm, rows):
    return [arm.call("extend", [request("a", 6, rows)])]


def uneven_batch(arm):
    """3367 rows: an odd number, tails of 128, 37, 128, 128 and 1 rows that lie wholly on one rank or the other."""
    return [arm.call("extend", UNEVEN)]


def long_prompt_in_chunks(arm):
    """9000 tokens as chunks of 4096, 2404 and 2500 rows."""
    return [arm.call("extend", [request("a", 7, 9000, end)]) for end in (4096, 6500, 9000)]


def prefix_hit(arm):
    """2976 new rows after 1024 that another request computed."""
    return [
        arm.call("extend", [request("a", 8, 1024)]),
        arm.call("extend", [request("b", 9, 4000, prefix_of="a", prefix=1024)]),
    ]


def prefill_then_decode(arm):
    first = arm.call("extend", UNEVEN)
    return [first, *zip(*arm.call("decode", 32), strict=True)]


SCENARIOS = {f.__name__: f for f in (uneven_batch, long_prompt_in_chunks, prefix_hit, prefill_then_decode)}
SCENARIOS |= {f"{rows}_rows": (lambda arm, rows=rows: one_prompt(arm, rows)) for rows in (2047, 2048, 2049, 4096, 8191)}


class Engines:
    """The arms of one size, loaded side by side, and what each scenario gave on each."""

    def __init__(self, folder, world, quantized=False, modes=MODES, arguments=BF16_EXPERTS, environment=None):
        where = model.write(folder / "model", quantized=quantized)
        self.arms, self.results = {}, {}
        try:
            for mode in modes:
                sp = () if mode == "off" else ("--prefill-sp-mode", mode)
                self.arms[mode] = Arm(
                    mode, where, world, (*arguments, *CHUNK, *sp), environment=environment, logs=folder / "logs"
                )
            self.said = {mode: arm.wait() for mode, arm in self.arms.items()}
        except BaseException:
            self.close()
            raise

    def run(self, mode, scenario):
        """(logits per step and rank, KV checksums per rank)"""
        if (mode, scenario) not in self.results:
            self.results[mode, scenario] = self.run_again(mode, scenario)
        return self.results[mode, scenario]

    def run_again(self, mode, scenario):
        arm = self.arms[mode]
        arm.call("reset")
        return SCENARIOS[scenario](arm), arm.call("cache")

    def close(self):
        for arm in self.arms.values():
            arm.close()


@pytest.fixture(scope="module", params=WORLDS, ids=lambda w: f"tp{w}")
def engines(request, tmp_path_factory):
    running = Engines(tmp_path_factory.mktemp(f"tp{request.param}"), request.param)
    yield running
    running.close()


def assert_same(one, other):
    """Logits of every step and every KV buffer, on every rank, bit for bit."""
    (steps, caches), (other_steps, other_caches) = one, other
    assert len(steps) == len(other_steps) > 0
    for step, (a, b) in enumerate(zip(steps, other_steps, strict=True)):
        for rank, (x, y) in enumerate(zip(a, b, strict=True)):
            x, y = numpy.asarray(x), numpy.asarray(y)
            assert numpy.isfinite(x).all() and numpy.abs(x).max() > 1e-3, "degenerate logits compare equal for nothing"
            moved = int((x.view(numpy.uint32) != y.view(numpy.uint32)).sum())
            assert not moved, (
                f"step {step} rank {rank}: {moved} of {x.size} logits differ, by up to {numpy.abs(x - y).max():.2e}"
            )
    for rank, (a, b) in enumerate(zip(caches, other_caches, strict=True)):
        written = [path for path, (_, n) in a.items() if n]
        assert written, "no KV byte was written: the comparison of the cache would be vacuous"
        assert a.keys() == b.keys()
        differing = [path for path in a if a[path] != b[path]]
        assert not differing, f"rank {rank}: KV buffers differ: {differing}"


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
