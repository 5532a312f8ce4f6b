"""Promise: the threshold decides between a prefill graph and sequence parallelism, chunk by chunk."""

from types import SimpleNamespace

import pytest
from model import BatchSpec, configured, make_batch
from ranks import run_ranks

BUCKET = 512
THRESHOLD = 300


def captured_runner(draft: bool):
    """Upstream's runner after it captured a bucket of 512 rows, without the capture."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import (
        PrefillCudaGraphRunner,
    )

    runner = object.__new__(PrefillCudaGraphRunner)
    facts = dict(
        model_runner=SimpleNamespace(is_draft_worker=draft),
        enable_lora=False,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        capture_num_tokens=[256, BUCKET],
        max_num_tokens=BUCKET,
        max_context_size=None,
        max_seq_len=None,
        prefill_backend_name="breakable",
        has_mha_companion_layers=False,
        _is_full_backend=False,
        _qwen_bcg_hc_sidechannel=False,
        _qwen_bcg_mtp_draft=False,
        _captured_attn_metadata_max_bs=None,
        _attn_backend_is_dsa=False,
        _backend_can_run_prefill_cuda_graph=None,
        _has_inactive_dp_rank=lambda batch: False,
        _has_uncapturable_chunked_prefix=lambda lens: False,
        _uses_eager_prefill_tail=lambda: True,
    )
    vars(runner).update(facts)
    return runner


def verdicts(rank, world, mode, draft, lens):
    """Whether each chunk replays a graph, in turn, on this rank."""
    with configured(prefill_sp_mode=mode, prefill_sp_min_tokens=THRESHOLD):
        runner = captured_runner(draft)
        return [runner.can_run_graph(make_batch(BatchSpec(rows))) for rows in lens]


CHUNKS = ((THRESHOLD - 1,), (THRESHOLD,), (150, 149), (150, 150), (BUCKET,), (250,), (BUCKET + 1,))


@pytest.mark.parametrize("mode", ("transport", "sharded", "exact"))
def test_the_threshold_decides_between_graph_and_eager(mode):
    by_rank = run_ranks(2, verdicts, mode, False, CHUNKS)
    assert by_rank[0] == by_rank[1]
    assert by_rank[0] == [True, False, True, False, False, True, False]


def test_off_leaves_every_chunk_to_upstream():
    assert run_ranks(2, verdicts, "off", False, CHUNKS)[0] == [True, True, True, True, True, True, False]


def test_a_draft_keeps_its_graphs():
    assert run_ranks(2, verdicts, "sharded", True, CHUNKS)[0] == [True, True, True, True, True, True, False]


def test_one_rank_alone_keeps_its_graphs():
    assert run_ranks(1, verdicts, "sharded", False, CHUNKS)[0] == [True, True, True, True, True, True, False]
