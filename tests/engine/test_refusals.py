"""Promise: a configuration that cannot run it is refused at start, in one error that names every reason."""

import json
import logging
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from chunks import STANDARD
from model import build_model, config_of, configured, environment
from ranks import import_engine, run_ranks, server_args

WORLD = 4

REFUSED = {
    "no CUDA": (dict(device="cpu"), "it needs CUDA, the device is cpu"),
    "TP 1": (dict(tp_size=1), "tensor parallelism is off"),
    "PP": (dict(pp_size=2), "pipeline parallelism (--pp-size 2)"),
    "attention DP": (dict(attn_dp_size=2), "data-parallel attention"),
    "attention CP": (dict(attn_cp_size=2), "context parallelism"),
    "prefill CP": (dict(enable_prefill_cp=True), "context parallelism"),
    "decode CP": (dict(dcp_size=2), "context parallelism"),
    "all-to-all MoE": (dict(moe_a2a_backend="deepep"), "all-to-all or mega MoE (--moe-a2a-backend deepep)"),
    "mega MoE": (dict(moe_a2a_backend="megamoe"), "all-to-all or mega MoE (--moe-a2a-backend megamoe)"),
    "EP narrower than TP": (dict(ep_size=2), "the MoE output is not one sum over the TP group"),
    "MoE DP": (dict(moe_dp_size=2), "the MoE output is not one sum over the TP group"),
    "LayerNorm SP": (dict(enable_layernorm_sp=True), "--enable-layernorm-sp"),
    "input scattered": (dict(enable_attn_tp_input_scattered=True), "--enable-attn-tp-input-scattered"),
    "two-batch overlap": (dict(enable_two_batch_overlap=True), "--enable-two-batch-overlap"),
    "LoRA": (dict(enable_lora=True), "LoRA"),
    "deterministic": (dict(enable_deterministic_inference=True), "deterministic inference"),
    "threshold below 256": (dict(prefill_sp_min_tokens=255), "--prefill-sp-min-tokens 255 is below 256"),
}
IN_ENVIRONMENT = {
    "replicated shared expert": (dict(SGLANG_SHARED_EXPERT_TP1="1"), "a replicated shared expert"),
    "unknown wkv": (
        dict(SGLANG_PREFILL_SP_ENGRAM_WKV="half"),
        "SGLANG_PREFILL_SP_ENGRAM_WKV must be one of shard, full",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def engine():
    import_engine()


def conflicts(mode="sharded", hf_config=None, **fields):
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.arg_groups.prefill_sp_hook import prefill_sp_conflicts

    args = server_args(WORLD, "cpu", **{"device": "cuda", "prefill_sp_mode": mode} | fields)
    return prefill_sp_conflicts(resolving_view(args), hf_config or config_of(STANDARD))


@pytest.mark.parametrize("mode", ("transport", "sharded", "exact"))
def test_the_plain_configuration_is_accepted(mode):
    assert conflicts(mode) == []


@pytest.mark.parametrize("name", REFUSED)
def test_each_reason_is_named(name):
    fields, reason = REFUSED[name]
    found = conflicts(**fields)
    assert any(reason in conflict for conflict in found), found


@pytest.mark.parametrize("name", IN_ENVIRONMENT)
def test_each_variable_is_named(name):
    variables, reason = IN_ENVIRONMENT[name]
    with environment(**variables):
        (found,) = conflicts()
    assert reason in found


def test_another_residual_is_refused():
    config = config_of(STANDARD)
    config.hc_pre_from_prev_sublayer = False
    (found,) = conflicts(hf_config=config)
    assert "not DeepSeek-V4.1's hyper-connection residual" in found


def test_deterministic_inference_runs_exact():
    assert conflicts("exact", enable_deterministic_inference=True) == []


def test_exact_has_no_order_of_its_own():
    with environment(SGLANG_PREFILL_SP_ORDERED_REDUCE="1"):
        (found,) = conflicts("exact")
        assert "SGLANG_PREFILL_SP_ORDERED_REDUCE" in found
        assert conflicts("sharded") == []


def handled(monkeypatch, **fields):
    from sglang.srt.arg_groups import prefill_sp_hook

    config = SimpleNamespace(hf_config=config_of(STANDARD))
    monkeypatch.setattr(prefill_sp_hook, "model_config_of", lambda args: config)
    prefill_sp_hook.handle_prefill_sp(server_args(WORLD, "cpu", **fields))


def test_one_error_names_every_reason(monkeypatch):
    with pytest.raises(ValueError) as refusal:
        handled(monkeypatch, prefill_sp_mode="sharded", pp_size=2, enable_lora=True, prefill_sp_min_tokens=9)
    text = str(refusal.value)
    assert "\n" not in text and text.startswith("--prefill-sp-mode sharded cannot run here: ")
    assert "the device is cpu" in text and "--pp-size 2" in text and "LoRA" in text and "below 256" in text
    assert "--prefill-sp-mode off" in text, "it says what to do"


def test_off_refuses_nothing(monkeypatch):
    handled(monkeypatch, prefill_sp_mode="off", pp_size=2, enable_lora=True, prefill_sp_min_tokens=9)


def test_a_server_of_another_model_is_refused_while_it_resolves(tmp_path):
    """Through upstream's own resolution pipeline, with a checkpoint's config on disk."""
    from sglang.srt.server_args import ServerArgs

    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=64,
        intermediate_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        vocab_size=64,
        max_position_embeddings=512,
        torch_dtype="bfloat16",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    args = ServerArgs(
        model_path=str(tmp_path), device="cpu", skip_tokenizer_init=True, tp_size=1, prefill_sp_mode="sharded"
    )
    with pytest.raises(ValueError) as refusal:
        args.resolve_once()
    text = str(refusal.value)
    assert "residual" in text and "--tp-size 1" in text and "the device is cpu" in text


def test_the_command_line_knows_its_arguments(capsys):
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    text = " ".join(parser.format_help().split())
    assert "--prefill-sp-mode {off,transport,sharded,exact}" in text
    assert "--prefill-sp-min-tokens" in text
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--model-path", "x", "--prefill-sp-mode", "fast"])
    assert stop.value.code == 2
    assert "invalid choice: 'fast'" in capsys.readouterr().err


@contextmanager
def logged():
    """Yields a list that fills with the lines which the feature logs on this rank."""
    from sglang.srt.layers import prefill_sp

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    prefill_sp.logger.addHandler(handler)
    prefill_sp.logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        prefill_sp.logger.removeHandler(handler)


def checked(rank, world, mode, faults):
    """The error of ``check_model`` on a model with the named faults, or None, and what this rank logs."""
    from sglang.srt.layers import prefill_sp

    model = build_model(STANDARD)
    places = {
        "wo_b": (model.layers[2].self_attn, "attn_tp_size", 1),
        "MoE": (model.layers[3].mlp, "tp_size", 1),
        "Engram": (model.layers[1].engram.embed, "tp_size", 1),
        "shared expert": (model.layers[0].mlp, "_shared_expert_tp1", True),
    }
    error = None
    with ExitStack() as stack:
        for name in faults:
            stack.enter_context(patch.object(*places[name]))
        stack.enter_context(configured(prefill_sp_mode=mode, prefill_sp_min_tokens=2048))
        lines = stack.enter_context(logged())
        try:
            prefill_sp.check_model(model.layers, model.late_layer_start)
        except ValueError as raised:
            error = str(raised)
    return error, lines


def test_a_built_model_with_another_group_is_refused():
    for error, _ in run_ranks(2, checked, "sharded", ("wo_b", "MoE", "Engram", "shared expert")):
        assert "layer 2: wo_b is split over 1 ranks, not 2" in error
        assert "layer 3: MoE is split over 1 ranks, not 2" in error
        assert "layer 1: Engram is split over 1 ranks, not 2" in error
        assert "layer 0: a replicated shared expert" in error


@pytest.mark.parametrize("mode", ("transport", "sharded", "exact"))
def test_one_line_says_what_will_run(mode):
    first, *others = run_ranks(2, checked, mode, ())
    error, (line,) = first
    assert error is None
    for fact in (mode, "2 ranks", "layers 0-3 of 6", "2048", "eager", "Engram"):
        assert fact in line, line
    assert all(lines == [] for _, lines in others), "once, not once per rank"


def test_off_says_so():
    first, _ = run_ranks(2, checked, "off", ())
    assert first == (None, ["Prefill sequence parallelism: off (--prefill-sp-mode)"])
