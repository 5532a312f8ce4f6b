"""One tensor-parallel rank that runs the engine's own ModelRunner and answers calls over a pipe.

Started by `engine.Arm`, one process per GPU: `python -m bench.rank PIPE RANK SERVER_ARGUMENTS...`. Every public method
of `Rank` is a call; all ranks of an arm get the same calls in the same order, as collectives need.
"""

import hashlib
import os
import statistics
import sys
import time
import traceback
from collections import defaultdict
from multiprocessing.connection import Connection

import numpy
import torch

from bench import weights
from bench.checksum import checksum, row_bytes, row_checksums
from bench.trace import note_forwards
from bench.tree import describe

COLLECTIVES = (
    *("all_reduce", "all_gather_into_tensor", "all_gather"),
    *("reduce_scatter_tensor", "reduce_scatter_along_dim"),
)
CACHE_BYTES = 1 << 14
"""A tensor of the KV pool at least this large holds pages or compressor state; smaller ones are tables."""
COMPARED_BYTES = 1 << 27


def prompt(seed: int, tokens: int) -> list[int]:
    """Random token ids, never a repeated filler: repeated ids make repeated rows, and kernels faster than they are."""
    return numpy.random.default_rng(seed).integers(10, 8000, tokens).tolist()


def cache_buffers(pool) -> dict[str, torch.Tensor]:
    """The large tensors reachable from the KV pool, by where they were found."""
    found, seen = {}, set()

    def visit(value, path, depth):
        if isinstance(value, torch.Tensor):
            key = (value.data_ptr(), value.numel())
            floating = value.is_floating_point() or value.dtype in (torch.uint8, torch.int8)
            large = value.numel() * value.element_size() >= CACHE_BYTES
            if value.is_cuda and value.is_contiguous() and floating and large and key not in seen:
                seen.add(key)
                found[path] = value
        elif depth < 6:
            if isinstance(value, (list, tuple)):
                items = enumerate(value)
            elif isinstance(value, dict):
                items = value.items()
            elif type(value).__module__.startswith("sglang.srt.mem_cache"):
                items = vars(value).items()
            else:
                return
            for name, item in items:
                visit(item, f"{path}.{name}", depth + 1)

    visit(pool, "kv", 0)
    return found


def blank_row(t: torch.Tensor) -> torch.Tensor:
    """The row [1, bytes] that every row of a KV buffer starts with: its own first one where all rows are alike, as in
    zeroed pages and in V4.1's pair state (values 0, scores -inf), and zeros for memory that nobody has initialized."""
    raw = row_bytes(t)
    alike = all(bool((piece == raw[:1]).all()) for piece in raw.split(max(1, COMPARED_BYTES // raw.shape[1])))
    return raw[:1].clone() if alike else torch.zeros_like(raw[:1])


class Rank:
    """The calls. `requests` are named by the caller; a request keeps its row until `reset`."""

    def __init__(self, rank: int, arguments: list[str]):
        import sglang.srt.model_loader.loader as loader
        from sglang.benchmark import one_batch
        from sglang.srt.server_args import PortArgs, prepare_server_args

        self.batches = one_batch
        gpu = rank
        if os.environ.get("BENCH_ONE_GPU"):
            from bench import one_gpu

            one_gpu.install()
            gpu = 0
        server_args = prepare_server_args(arguments)
        server_args.resolve_once()
        one_batch._set_envs_and_config(server_args)
        loader.initialize_dummy_weights = weights.draw_all
        world_rank = one_batch.spawn_world_rank(server_args, tp_rank=rank, pp_rank=0)
        one_batch.publish(server_args, role="scheduler", ranks=one_batch.SpawnRanks(world_rank=world_rank, gpu_id=gpu))
        one_batch._init_process_global_configs()
        one_batch.configure_logger(server_args, prefix=f" TP{rank}")
        self.runner = one_batch.load_model(server_args, PortArgs.init_new(server_args), gpu, rank)[0]
        self.model_runner = self.runner.torch_runner
        self.requests, self.shared, self.batch = {}, {}, None
        shared = self.shared

        class TreeCache(one_batch.TreeCacheNamespace):
            def prefix_device_indices(self, req):
                return shared[req.rid]

        one_batch.TreeCacheNamespace = TreeCache
        prepare = one_batch._maybe_prepare_mlp_sync_batch

        def prepare_as_the_scheduler_does(batch, model_runner):
            prepare(batch, model_runner)
            model_runner.ngram_embedding_manager.prepare_for_forward(batch, chunked_req=None)

        # Without it a request that takes its prefix from another's cache hashes the n-gram history its slot had before.
        one_batch._maybe_prepare_mlp_sync_batch = prepare_as_the_scheduler_does
        self.caches = cache_buffers(self.model_runner.token_to_kv_pool)
        self.blank_rows = {path: blank_row(t) for path, t in self.caches.items()}
        self.reset()
        self.blank_sums = {path: row_checksums(t) for path, t in self.caches.items()}
        self.notes = []

    # --- what runs here ---------------------------------------------------------------------------------------------

    def describe(self) -> dict:
        """The imported tree and what the engine resolved: a measurement of something else must be visible."""
        model = self.model_runner.model.model
        return {
            "tree": describe(),
            "late_layer_start": model.late_layer_start,
            "layers": len(model.layers),
            "caches": len(self.caches),
        }

    # --- correctness ------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget every request and bring the KV pool to one content, the same in every process."""
        self.runner.clear()
        self.requests.clear()
        self.shared.clear()
        for path, t in self.caches.items():
            row_bytes(t).copy_(self.blank_rows[path].expand_as(row_bytes(t)))
        torch.cuda.empty_cache()

    @torch.no_grad
    def extend(self, chunk: list[dict]) -> numpy.ndarray:
        """One prefill chunk; the next-token logits [requests, vocab] fp32.

        Each entry: name, end (tokens of the prompt computed after this chunk), and for a new request seed and tokens
        (its whole prompt) and perhaps prefix_of (another request) and prefix (tokens taken from that one's cache).
        """
        reqs = []
        for entry in chunk:
            name = entry["name"]
            if name not in self.requests:
                ids = prompt(entry["seed"], entry["tokens"])
                if "prefix_of" in entry:
                    other = self.requests[entry["prefix_of"]]
                    ids[: entry["prefix"]] = list(other.origin_input_ids)[: entry["prefix"]]
                (req,) = self.batches.prepare_synthetic_inputs_for_latency_test(1, len(ids), [ids])
                req.rid = name
                if "prefix_of" in entry:
                    row = self.model_runner.req_to_token_pool.req_to_token[other.kv.req_pool_idx]
                    self.shared[name] = row[: entry["prefix"]].to(torch.int64)
                    req.prefix_len = entry["prefix"]
                self.requests[name] = req
            else:
                req = self.requests[name]
                req.prefix_len = req.extend_end
            req.extend_end = entry["end"]
            reqs.append(req)
        self.next_ids, logits, self.batch = self.runner.extend(reqs)
        return logits.float().cpu().numpy()

    @torch.no_grad
    def decode(self, steps: int) -> list[numpy.ndarray]:
        """Greedy decode of the last chunk's requests: the logits of every step."""
        out = []
        for _ in range(steps):
            self.next_ids, logits = self.runner.decode(self.next_ids, self.batch)
            out.append(logits.float().cpu().numpy())
        return out

    def cache(self) -> dict[str, tuple[numpy.ndarray, int]]:
        """Per KV buffer: the checksum of every page but the first, and how many of those pages were written.

        The first page (of per-request state: the first row) belongs to no request: what has no destination is written
        there, in no particular order.
        """
        out = {}
        for path, t in self.caches.items():
            sums = row_checksums(t)[1:]
            out[path] = sums.cpu().numpy(), int((sums != self.blank_sums[path][1:]).sum())
        return out

    def weights(self) -> dict[str, int]:
        """The checksum of every parameter and buffer of the model."""
        model = self.model_runner.model
        return {name: checksum(t) for name, t in (*model.named_parameters(), *model.named_buffers()) if t.numel()}

    def trace(self) -> None:
        """From now on, note what every forward computes (`noted` returns it)."""
        note_forwards(self.model_runner.model.model, self.notes)

    def noted(self) -> list[tuple[str, numpy.ndarray | None]]:
        """What `trace` noted since the last call, in order: (place, checksum of every row, None for no rows)."""
        notes = [(site, None if sums is None else sums.cpu().numpy()) for site, sums in self.notes]
        self.notes.clear()
        return notes

    # --- measurements -----------------------------------------------------------------------------------------------

    @torch.no_grad
    def prefill(self, rows: int, seed: int = 7) -> tuple[float, str]:
        """One request of `rows` tokens in one chunk: seconds, and a digest of the logits."""
        self.runner.clear()
        reqs = self.batches.prepare_synthetic_inputs_for_latency_test(1, rows, [prompt(seed, rows)])
        torch.cuda.synchronize()
        torch.distributed.barrier()
        start = time.perf_counter()
        logits = self.runner.extend(reqs)[1]
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return seconds, hashlib.sha256(logits.float().cpu().numpy().tobytes()).hexdigest()[:12]

    def peak(self, rows: int) -> int:
        """Bytes of activations: the most that the allocator held during a prefill, above what it held before."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.prefill(rows)
        return torch.cuda.max_memory_allocated() - before

    def kernels(self, rows: int) -> dict[str, tuple[float, int]]:
        """Device time of one prefill by kernel: name -> (milliseconds, launches)."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.prefill(rows)
        return {k.key: (k.device_time_total / 1e3, k.count) for k in profile.key_averages() if k.device_time_total > 0}

    def modules(self, rows: int, endings: tuple[str, ...]) -> dict[str, float]:
        """Device milliseconds that one prefill spends in all modules whose name ends so."""
        spans, handles = defaultdict(list), []
        for name, module in self.model_runner.model.named_modules():
            for ending in endings:
                if name.endswith(ending):

                    def enter(*_, key=ending):
                        spans[key].append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
                        spans[key][-1][0].record()

                    def leave(*_, key=ending):
                        spans[key][-1][1].record()

                    handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        try:
            self.prefill(rows)
        finally:
            for handle in handles:
                handle.remove()
        return {key: sum(a.elapsed_time(b) for a, b in pairs) for key, pairs in spans.items()}

    def collectives(self, rows: int, repeats: int = 20) -> list[dict]:
        """Every collective of one prefill, outermost calls, and what each costs alone.

        A dict per (operation, shape): how often it ran, the bytes of the whole tensor, and median milliseconds of one.
        """
        from sglang.srt.distributed.parallel_state import GroupCoordinator

        seen, depth, stock = defaultdict(int), [0], {}

        def logged(name):
            def call(group, *args, **kwargs):
                if not depth[0] and group.world_size > 1:
                    seen[name, group, tuple((tuple(a.shape), a.dtype) for a in args if torch.is_tensor(a))] += 1
                depth[0] += 1
                try:
                    return stock[name](group, *args, **kwargs)
                finally:
                    depth[0] -= 1

            return call

        for name in COLLECTIVES:
            stock[name] = getattr(GroupCoordinator, name)
            setattr(GroupCoordinator, name, logged(name))
        try:
            self.prefill(rows)
        finally:
            for name in COLLECTIVES:
                setattr(GroupCoordinator, name, stock[name])
        out = []
        for (name, group, tensors), count in seen.items():
            args = [torch.randn(shape, device="cuda").to(dtype) for shape, dtype in tensors]
            alone = []
            for _ in range(repeats):
                torch.distributed.barrier()
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                stock[name](group, *args)
                b.record()
                torch.cuda.synchronize()
                alone.append(a.elapsed_time(b))
            out.append(
                {
                    "name": name,
                    "shapes": [list(s) for s, _ in tensors],
                    "count": count,
                    "bytes": max(t.numel() * t.element_size() for t in args),
                    "ms": statistics.median(alone),
                }
            )
        return out


def main() -> None:
    parent, rank = Connection(int(sys.argv[1])), int(sys.argv[2])
    try:
        served = Rank(rank, sys.argv[3:])
        parent.send((True, served.describe()))
        while True:
            try:
                name, args, kwargs = parent.recv()
            except EOFError:
                break
            parent.send((True, getattr(served, name)(*args, **kwargs)))
    except BaseException:
        traceback.print_exc()
        parent.send((False, traceback.format_exc()))
        os._exit(1)
    os._exit(0)  # the engine's threads and NCCL outlive an ordinary exit


if __name__ == "__main__":
    main()
