"""W processes of one tensor-parallel group, and the bodies that run in them.

``run_ranks(world, body, *args)`` runs ``body(rank, world, *args)`` in every rank
of a pool of forked processes and returns the results by rank. The pool keeps
sglang's real distributed state (every ``GroupCoordinator``) for the whole session,
because importing the engine takes 20 s and the groups take seconds more. A body
is a module-level function; its arguments and its result are pickled.

The same bodies run over gloo on the CPU and over NCCL on GPUs: a body asks
``device()`` where its tensors live and never which backend moves them.
"""

import atexit
import ctypes
import faulthandler
import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

GRACE_S = 3.0
"""How long the other ranks may still run once one of them failed."""

COLLECTIVE_TIMEOUT_S = 60

COLLECTIVE_OPS = (
    "inplace_all_reduce",
    "reg_all_gather_into_tensor",
    "reg_reduce_scatter_tensor",
    "reg_all_to_all_single",
)

_device = torch.device("cpu")


def device() -> torch.device:
    """Where this rank's tensors live."""
    return _device


@contextmanager
def collectives():
    """Yields a list that fills with (operation, rows, row bytes) of every collective
    that a group of this rank runs, in order; what they do is unchanged."""
    from sglang.srt.distributed.parallel_state import GroupCoordinator

    seen: list[tuple[str, int, int]] = []

    def watched(name, moved):
        real = getattr(GroupCoordinator, name)

        def call(self, *args, **kwargs):
            tensor = args[moved]
            if self.world_size > 1:
                size = tensor.numel() * tensor.element_size()
                rows = tensor.shape[0]
                seen.append((name, rows, size // max(rows, 1)))
            return real(self, *args, **kwargs)

        return patch.object(GroupCoordinator, name, call)

    with (
        watched("all_reduce", 0),
        watched("reduce_scatter_tensor", 1),
        watched("all_gather_into_tensor", 1),
        watched("all_to_all_single", 1),
    ):
        yield seen


class RanksFailed(AssertionError):
    """A body failed or hung; the message holds every rank's traceback."""


def import_engine() -> None:
    """Import the engine into this process; 20 s the first time."""
    # Upstream's switch for CPU serving makes an import need its CPU kernels.
    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("sglang.srt.models.deepseek_v4")


@dataclass
class _Worker:
    rank: int
    process: multiprocessing.Process
    pipe: Connection
    stack_file: Path


class RankPool:
    """``world`` forked ranks with sglang's groups built, reused by many bodies.

    Args:
        world: Ranks, all in one tensor-parallel group.
        backend: "gloo" (CPU) or "nccl" (rank r on GPU r).

    The parent imports the engine here, once for every pool; it must not have touched
    CUDA.
    """

    def __init__(self, world: int, backend: str = "gloo"):
        import_engine()
        self.world = world
        self._scratch = tempfile.TemporaryDirectory(prefix="ranks-")
        scratch = Path(self._scratch.name)
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            # A rank that keeps the parent's ends would never see the parent go.
            inherited = [*(worker.pipe for worker in self._workers), ours]
            stack_file = scratch / f"stack-{rank}"
            store = str(scratch / "store")
            process = context.Process(
                target=_serve,
                args=(theirs, inherited, rank, world, backend, store, stack_file),
                name=f"rank-{rank}-of-{world}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._workers.append(_Worker(rank, process, ours, stack_file))
        self.alive = True
        self._collect("group set-up", timeout=180)

    def run(self, body: Callable, *args: Any, timeout: float = 120) -> list[Any]:
        """Run ``body(rank, world, *args)`` everywhere; the results by rank.

        Raises RanksFailed with every rank's traceback when a rank raises, and with
        the stacks of the ranks that hung when ``timeout`` seconds pass. Either way
        the pool is gone and the next call of run_ranks forks a new one.
        """
        call = pickle.dumps((body.__module__, body.__qualname__, args))
        for worker in self._workers:
            worker.pipe.send_bytes(call)
        return self._collect(body.__qualname__, timeout)

    def _collect(self, what: str, timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        waiting = {worker.pipe: worker for worker in self._workers}
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                worker = waiting.pop(pipe)
                try:
                    ok, value = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    worker.process.join(1)
                    ok, value = False, f"died, exit code {worker.process.exitcode}"
                (results if ok else failures)[worker.rank] = value
            if failures:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        if not waiting and not failures:
            return [results[rank] for rank in range(self.world)]
        hung = {worker.rank: _stack_of(worker) for worker in waiting.values()}
        self.close()
        raise RanksFailed(_report(what, self.world, results, failures, hung))

    def close(self) -> None:
        """End the ranks; safe to call twice."""
        if not self.alive:
            return
        self.alive = False
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(timeout=0.5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._scratch.cleanup()


def _stack_of(worker: _Worker) -> str:
    """Where a rank that did not answer is, from its own faulthandler."""
    try:
        os.kill(worker.process.pid, signal.SIGUSR1)
    except ProcessLookupError:
        return "the process is gone"
    time.sleep(0.2)
    stack = worker.stack_file.read_text()
    return stack.split(f'  File "{__file__}"')[0] or "no stack was written"


def _report(what, world, results, failures, hung) -> str:
    lines = [f"{what} on {world} ranks: {len(failures)} raised, {len(hung)} hung"]
    for rank in range(world):
        if rank in failures:
            lines += [f"--- rank {rank} raised", failures[rank].rstrip()]
        elif rank in hung:
            lines += [f"--- rank {rank} hung; it was here", hung[rank].rstrip()]
        else:
            lines.append(f"--- rank {rank} returned")
    return "\n".join(lines)


_pools: dict[tuple[int, str], RankPool] = {}


def run_ranks(
    world: int,
    body: Callable,
    *args: Any,
    backend: str | None = None,
    timeout: float = 120,
) -> list[Any]:
    """``body(rank, world, *args)`` in each of ``world`` ranks; results by rank.

    ``backend`` is "gloo" or "nccl", and what RANKS_BACKEND says (gloo) if None.
    """
    backend = backend or os.environ.get("RANKS_BACKEND", "gloo")
    pool = _pools.get((world, backend))
    if pool is None or not pool.alive:
        pool = _pools[world, backend] = RankPool(world, backend)
    return pool.run(body, *args, timeout=timeout)


def close_pools() -> None:
    """End every pool; the next run_ranks forks a new one."""
    for pool in _pools.values():
        pool.close()
    _pools.clear()


atexit.register(close_pools)


# --- in the rank -----------------------------------------------------------------


def _serve(pipe, inherited, rank, world, backend, store, stack_file) -> None:
    # The parent owns the terminal and the pools; a rank must not end them.
    atexit.unregister(close_pools)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for parents_end in inherited:
        parents_end.close()
    with open(stack_file, "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        _answer(pipe, lambda: _init_groups(rank, world, backend, store))
        while True:
            try:
                module, name, args = pickle.loads(pipe.recv_bytes())
            except EOFError:
                os._exit(0)
            _answer(pipe, partial(_run, module, name, rank, world, args))


def _answer(pipe, call) -> None:
    try:
        reply = pickle.dumps((True, call()))
    except BaseException:
        reply = pickle.dumps((False, traceback.format_exc()))
    try:
        pipe.send_bytes(reply)
    except BrokenPipeError:
        os._exit(1)


def _run(module: str, name: str, rank: int, world: int, args: tuple) -> Any:
    body = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        body = getattr(body, part)
    return body(rank, world, *args)


def _init_groups(rank: int, world: int, backend: str, store: str) -> None:
    """sglang's own start-up order: publish the configuration, then the groups."""
    global _device
    from sglang.srt.distributed import parallel_state
    from sglang.srt.distributed.device_communicators import pynccl_wrapper
    from sglang.srt.runtime_context import SpawnRanks, publish

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    os.environ["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] = "0"
    if backend == "nccl":
        _device = torch.device("cuda", rank)
        torch.cuda.set_device(_device)
    else:
        _keep_freed_memory()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        # Upstream's path for a machine without NCCL: the communicator disables
        # itself, and says so as an error.
        os.environ["SGLANG_NCCL_SO_PATH"] = os.devnull
        logging.getLogger(pynccl_wrapper.__name__).setLevel(logging.CRITICAL)
        parallel_state.set_custom_all_reduce(False)
        # Dynamo asks the accelerator, which a forked process must not touch.
        torch._dynamo.config.disable = True
        # The custom ops around the collectives are registered for the GPU alone; run
        # what they wrap, as eager GPU calls do.
        for op in COLLECTIVE_OPS:
            setattr(parallel_state, op, getattr(parallel_state, op).__wrapped__)
        parallel_state.reduce_scatter_single = _ring_reduce_scatter
    publish(server_args(world, _device.type), role="test", ranks=SpawnRanks(rank))
    parallel_state.init_distributed_environment(
        world_size=world,
        rank=rank,
        local_rank=rank,
        distributed_init_method=f"file://{store}",
        backend=backend,
        timeout=COLLECTIVE_TIMEOUT_S,
    )
    parallel_state.initialize_model_parallel()


def _keep_freed_memory() -> None:
    """Let glibc reuse large blocks instead of asking the kernel for zeroed pages for every tensor."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, 1 << 30)


def _ring_reduce_scatter(output, input, group) -> None:
    """gloo's reduce-scatter is an all-reduce of which a rank keeps its part. This one
    sums as a ring does, each part from the rank after its owner on and rounded at
    each step: at more than two ranks its bits depend on the owner, as NCCL's may."""
    world, rank = group.size(), group.rank()
    received = torch.empty_like(input)
    torch.distributed.all_to_all_single(received, input, group=group)
    parts = received.view(world, *output.shape)
    total = parts[(rank + 1) % world]
    for step in range(2, world + 1):
        total = total + parts[(rank + step) % world]
    output.copy_(total)


def server_args(world: int, device_type: str, **fields):
    """Resolved arguments of a server of ``world`` tensor-parallel ranks."""
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.server_args import ServerArgs

    # "dummy" is upstream's name for a server without a checkpoint to read.
    args = ServerArgs(model_path="dummy", device=device_type)
    args.resolve_once()
    declare_resolution(args, "test ranks", **{"tp_size": world} | fields)
    return args
