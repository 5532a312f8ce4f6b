"""Promise: with weights in the released formats, too, exact and sharded equal off bit for bit at two ranks.

Dense weights are e4m3 in 32 x 32 blocks with power-of-two scales, experts MXFP4. SM90: block-32 DeepGEMM for dense,
Marlin (W4A16) here for the experts. The paths of SM100 and SM12x are read from the gates (docs/platforms.md), not run.
On two GPUs or more the ranks use NCCL; on one they share it (`bench.one_gpu`).
"""

import pytest
from scenarios import Engines, asked_for, assert_same
from visible import GPUS, needs

pytestmark = needs(1)
SCENARIOS = ("uneven_batch", "long_prompt_in_chunks")


@pytest.fixture(scope="module")
def engines(request, tmp_path_factory):
    return Engines(
        tmp_path_factory.mktemp("released"),
        2,
        ("off", "exact", "sharded"),
        asked_for(request, SCENARIOS, ("scenario",)),
        size=("--chunked-prefill-size", "8192", "--max-total-tokens", "16384"),
        arguments=("--moe-runner-backend", "marlin"),
        environment={"SGLANG_DSV4_FP4_EXPERTS": "1", "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"},
        one_gpu=GPUS < 2,
        quantized=True,
        layers=6,
        experts=16,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", ("off", "exact", "sharded"))
def test_a_run_repeats_itself(engines, mode, scenario):
    first, second = engines.of(mode, scenario)
    assert_same(second, first)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", ("exact", "sharded"))
def test_equals_off(engines, mode, scenario):
    for run in engines.of(mode, scenario):
        assert_same(run, engines.of("off", scenario)[0])
