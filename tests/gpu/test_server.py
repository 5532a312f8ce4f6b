"""Promise: the launched server works with sequence-parallel prefill on, and says so.

With one GPU the server runs without it, as tensor parallelism of one has nothing to shard.
"""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from visible import needs

from bench import model
from bench.engine import BF16_EXPERTS, EAGER, free_port
from bench.rank import prompt

SERVERS = [
    pytest.param((1, "off"), marks=needs(1), id="tp1-off"),
    pytest.param((2, "sharded"), marks=needs(2), id="tp2-sharded"),
]
START_S = 420


def get(url, body=None, timeout=120):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory):
    """(base URL, path of the log, mode)"""
    world, mode = request.param
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    log = folder / "log"
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(model.write(folder / "model")),
        "--tp-size",
        str(world),
        "--port",
        str(port),
        "--enable-metrics",
        *EAGER,
        *BF16_EXPERTS,
        "--chunked-prefill-size",
        "4096",
        "--max-total-tokens",
        "65536",
        "--prefill-sp-mode",
        mode,
    ]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, f"the server ended:\n{log.read_text()[-6000:]}"
            assert time.monotonic() < deadline, f"no answer within {START_S} s:\n{log.read_text()[-6000:]}"
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                get(f"{url}/health_generate", timeout=30)
                break
            time.sleep(1)
        yield url, log, mode
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def generate(url, tokens, new=4):
    body = {"input_ids": prompt(11, tokens), "sampling_params": {"max_new_tokens": new, "temperature": 0}}
    return json.loads(get(f"{url}/generate", body))


def test_health_and_a_short_completion(server):
    url, *_ = server
    assert get(f"{url}/health") is not None
    answer = generate(url, 20)
    assert answer["meta_info"]["completion_tokens"] == 4


def test_a_long_prompt(server):
    url, *_ = server
    answer = generate(url, 9500)
    assert answer["meta_info"]["prompt_tokens"] == 9500
    assert answer["meta_info"]["completion_tokens"] == 4


def test_the_same_prompt_gives_the_same_tokens(server):
    url, *_ = server
    assert generate(url, 5000, 8)["output_ids"] == generate(url, 5000, 8)["output_ids"]


def test_metrics_answer(server):
    url, *_ = server
    generate(url, 20)
    lines = [line for line in get(f"{url}/metrics").splitlines() if line.startswith("sglang:prompt_tokens_total")]
    assert lines and sum(float(line.rsplit(" ", 1)[1]) for line in lines) >= 20, lines


def test_the_log_says_what_runs(server):
    _, log, mode = server
    lines = [line for line in log.read_text().splitlines() if "Prefill sequence parallelism: " in line]
    assert lines and all(f"Prefill sequence parallelism: {mode}" in line for line in lines), lines
    assert mode == "off" or "2048" in lines[0], lines
