"""Arms: the engine at TP n from one source tree with one set of arguments, each in processes of its own.

Arms are loaded side by side on the same GPUs and run in turn, so that they see one machine in one state. An idle arm
holds memory and runs nothing.
"""

import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait

ROOT = pathlib.Path(__file__).resolve().parents[1]
EAGER = (
    *("--load-format", "dummy", "--max-running-requests", "8", "--mem-fraction-static", "0.8"),
    *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
    "--enforce-disable-flashinfer-allreduce-fusion",
)
"""Eager prefill and decode. The fused all-reduce would be compiled for five minutes at a first start; above a few
hundred rows it plays no part."""
BF16_EXPERTS = ("--moe-runner-backend", "triton")


class ArmFailed(AssertionError):
    """A rank raised or died; the message has its traceback, or the end of its log."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Arm:
    """`world` ranks of one engine.

    Args:
        name: What messages and the log file are called.
        model: A model directory (`model.write`).
        world: Tensor-parallel size; rank r runs on GPU r.
        arguments: Server arguments beyond the model, the size and `EAGER`.
        tree: Folder whose `sglang` the ranks import; None for this interpreter's own.
        environment: Extra environment variables of the ranks.
        one_gpu: All ranks on GPU 0, their collectives over CUDA IPC (`one_gpu.py`).
        logs: Folder for the ranks' output; a temporary one if None.
    """

    def __init__(
        self, name, model, world, arguments=BF16_EXPERTS, tree=None, environment=None, logs=None, one_gpu=False
    ):
        self.name, self.world = name, world
        self.logs = pathlib.Path(logs or tempfile.mkdtemp(prefix="arm-"))
        self.logs.mkdir(parents=True, exist_ok=True)
        paths = [str(tree)] if tree else []
        paths += [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
            "TOKENIZERS_PARALLELISM": "false",
            **(environment or {}),
        }
        command = [
            "--model-path",
            str(model),
            "--tp-size",
            str(world),
            "--nccl-port",
            str(free_port()),
            *EAGER,
            *arguments,
            *(["--disable-custom-all-reduce", "--mem-fraction-static", "0.97"] if one_gpu else []),
        ]
        if one_gpu:
            environ |= {"BENCH_ONE_GPU": "1", "SGLANG_NCCL_SO_PATH": os.devnull, "GLOO_SOCKET_IFNAME": "lo"}
        self.processes, self.ranks = [], []
        for rank in range(world):
            ours, theirs = multiprocessing.Pipe()
            fd = theirs.fileno()
            with open(self.log(rank), "w") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "bench.rank", str(fd), str(rank), *command],
                        env=environ,
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        pass_fds=[fd],
                    )
                )
            theirs.close()
            self.ranks.append(ours)

    def log(self, rank) -> pathlib.Path:
        return self.logs / f"{self.name}-{rank}.log"

    def failed(self, what: str) -> ArmFailed:
        self.close()
        tails = [
            f"--- {log}\n" + "\n".join(log.read_text().splitlines()[-40:]) for log in map(self.log, range(self.world))
        ]
        return ArmFailed(f"arm {self.name}: {what}\n" + "\n".join(tails))

    def wait(self, timeout: float = 420) -> dict:
        """Until the model is loaded; what rank 0 says of itself. Start every arm first, then wait for each."""
        return self.collect("load", timeout)[0]

    def start(self, call: str, *args, **kwargs) -> None:
        """Send one call to every rank without waiting for the answers."""
        for rank in self.ranks:
            rank.send((call, args, kwargs))

    def collect(self, what: str, timeout: float = 300) -> list:
        deadline, answers = time.monotonic() + timeout, {}
        while len(answers) < self.world:
            pending = [c for r, c in enumerate(self.ranks) if r not in answers]
            ready = wait(pending, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self.failed(f"{what} did not end within {timeout:.0f} s")
            for connection in ready:
                rank = self.ranks.index(connection)
                try:
                    good, value = connection.recv()
                except EOFError:
                    good, value = False, f"died with exit code {self.processes[rank].wait(5)}"
                if not good:
                    raise self.failed(f"{what} on rank {rank}: {value}")
                answers[rank] = value
        return [answers[r] for r in range(self.world)]

    def call(self, name: str, *args, timeout: float = 300, **kwargs) -> list:
        """Run one of `rank.Rank`'s calls on every rank; the results by rank."""
        self.start(name, *args, **kwargs)
        return self.collect(name, timeout)

    def close(self) -> None:
        for connection in self.ranks:
            connection.close()
        for process in self.processes:
            process.kill()
            process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
