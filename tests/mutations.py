"""Break the engine once in each way that would matter, and demand that a test turns red.

    PYTHONPATH=build/python python tests/mutations.py [NAME ...]     all of them unless named; --list lists them

Each mutation is made in a scratch copy of the engine tree in front on PYTHONPATH and undone after its tests ran. First
the tests have to pass on the copy as it is. Exit status: 0 every mutation is caught; 1 one survives; 2 one no longer
applies, or the tests fail without any.
"""

import argparse
import importlib
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

ENGINE = Path(__file__).parent / "engine"
sys.path.insert(0, str(ENGINE))

from trees import copy_tree  # noqa: E402

SHARDS = "sglang/srt/layers/row_shards.py"
PLAN = "sglang/srt/layers/prefill_sp.py"
LINEAR = "sglang/srt/layers/linear.py"
ENGRAM = "sglang/srt/layers/engram.py"
STAGES = "sglang/srt/layers/layer_boundary/construction.py"
HOOK = "sglang/srt/arg_groups/prefill_sp_hook.py"
MODEL = "sglang/srt/models/deepseek_v4.py"
MOE = "sglang/srt/models/deepseek_v2.py"
MHC = "sglang/srt/models/deepseek_v4_mhc.py"
TRANSPORT = "sglang/srt/models/deepseek_common/prefill_sp_transport.py"
MHC_KERNELS = "sglang/kernels/ops/layernorm/mhc.py"
COMBINE = "sglang/kernels/ops/layernorm/hc_combine_norm.py"
SPLIT_H = "sglang/kernels/ops/layernorm/mhc_post_split_h.py"

TWO_RANKS = "test_two_ranks_are_exact.py::test_sharded_equals_off"
EXACT = "test_exact_equals_off.py::test_exact_equals_off"
SHARDED = "test_sharded_equals_transport.py::test_sharded_equals_transport"


@dataclass(frozen=True)
class Mutation:
    """One fault: ``old``, which stands exactly once in ``file``, becomes ``new``, and ``tests`` must not all pass."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    # --- rows and their moves
    Mutation(
        "the gather of a sublayer's input is left out",
        PLAN,
        "            return x\n        return gather_rows(x, self.shards, self.group)",
        "            return x\n        return x.repeat(self.shards.world, 1)[: self.shards.rows]",
        (f"{TWO_RANKS}[many requests]",),
    ),
    Mutation(
        "a gather keeps its padding",
        SHARDS,
        "    return full[: shards.rows]\n",
        "    return full\n",
        (f"{TWO_RANKS}[264+1 rows]",),
    ),
    Mutation(
        "padding of a partial sum is not zero",
        SHARDS,
        "    padded[shards.rows :].zero_()\n",
        "    padded[shards.rows :].fill_(1)\n",
        ("test_row_shards.py",),
    ),
    Mutation(
        "padding of a shard is not zero",
        SHARDS,
        "own.new_zeros((missing, *own.shape[1:]))",
        "own.new_ones((missing, *own.shape[1:]))",
        ("test_row_shards.py",),
    ),
    Mutation(
        "the wrong owner's tail row is taken",
        SHARDS,
        "    owner = indices // shards.shard\n",
        "    owner = (indices // shards.shard + 1) % shards.world\n",
        (f"{TWO_RANKS}[short tails on every rank]", "test_tail.py::test_the_tail_is_a_byte_copy[0-many requests-4]"),
    ),
    Mutation(
        "the tail drops its pad rows",
        PLAN,
        "            if tail.pad_rows:\n",
        "            if False:\n",
        ("test_tail.py::test_the_tail_is_a_byte_copy[3-many requests-2]",),
    ),
    Mutation(
        "the tail's row-sharded plan goes on into the late layers",
        MODEL,
        "                prefill_sp.leave()\n",
        "",
        (f"{TWO_RANKS}[one short tail]",),
    ),
    Mutation(
        "the source layer's input is not gathered",
        MODEL,
        "                        source_x = prefill_sp.compute_input(source_x)\n",
        "",
        (f"{TWO_RANKS}[one short tail]",),
    ),
    Mutation(
        "the exit keeps the shard",
        MODEL,
        "            state = state.take_rows(sp.all_rows)\n",
        "            pass\n",
        (f"{TWO_RANKS}[no tail]",),
    ),
    Mutation(
        "a draft gets the whole chunk's rows for its tail",
        PLAN,
        "return self.all_rows(own) if tail is None else self.tail_rows(tail)(own)",
        "return self.all_rows(own)",
        (f"{TWO_RANKS}[draft, tail]",),
    ),
    # --- sums
    Mutation(
        "attention's sum is made twice",
        LINEAR,
        "output = reduce_scatter_rows(output_parallel, scatter_rows, self.tp_group)",
        "output = reduce_scatter_rows(\n"
        "                self.tp_group.all_reduce(output_parallel), scatter_rows, self.tp_group\n            )",
        (f"{TWO_RANKS}[many requests]",),
    ),
    Mutation(
        "the experts' sum is left out",
        MOE,
        "            return post_experts_reduce_scatter(final_hidden_states, scatter_rows)\n",
        "            from sglang.srt.layers.row_shards import shard_rows\n\n"
        "            return shard_rows(final_hidden_states, scatter_rows)\n",
        (f"{TWO_RANKS}[many requests]",),
    ),
    Mutation(
        "the boundary sums the experts' output again",
        MODEL,
        "leave_output_sum=transport.scatter_rows is None,",
        "leave_output_sum=True,",
        (f"{TWO_RANKS}[many requests]",),
    ),
    Mutation(
        "the Engram's owners are not summed",
        ENGRAM,
        "reduce_scatter_rows(\n            self._owned_rows(indices), shards, get_parallel().tp_group\n        )",
        "shard_rows(self._owned_rows(indices), shards)",
        (f"{TWO_RANKS}[many requests]",),
    ),
    Mutation(
        "exact sums in the reduce-scatter's order",
        PLAN,
        "        return SumOrder.ALL_REDUCE\n",
        "        return SumOrder.NATIVE\n",
        (f"{EXACT}[4-many requests]",),
    ),
    Mutation(
        "the ordered reduce starts at the owner",
        SHARDS,
        "    total = parts[0].float()\n    for part in parts[1:]:",
        "    parts = parts.roll(-shards.rank, 0)\n    total = parts[0].float()\n    for part in parts[1:]:",
        ("test_ordered_reduce.py::test_the_order_is_the_ranks[4]",),
    ),
    Mutation(
        "the ordered reduce rounds at each step",
        SHARDS,
        "    total = parts[0].float()\n",
        "    total = parts[0].clone()\n",
        ("test_row_shards.py",),
    ),
    # --- the chunk's row count
    Mutation(
        "every choice by row count reads the shard's",
        PLAN,
        "    return plan.shards.rows\n",
        "    return rows\n",
        ("test_row_gates.py",),
    ),
    *(
        Mutation(
            f"{function} reads the shard's row count",
            file,
            old,
            new,
            ("test_row_gates.py",),
        )
        for function, file, old, new in (
            ("mix stats", MHC, "rows = chunk_rows(x_flat.shape[0])", "rows = x_flat.shape[0]"),
            (
                "combine",
                MHC,
                "    x_flat = x.flatten(1)\n    rows = chunk_rows(x.shape[0])\n",
                "    x_flat = x.flatten(1)\n    rows = x.shape[0]\n",
            ),
            (
                "post",
                MHC,
                "device=x.device)\n    rows = chunk_rows(x.shape[0])\n",
                "device=x.device)\n    rows = x.shape[0]\n",
            ),
            ("fused post", MHC, "rows = chunk_rows(y.shape[0])", "rows = y.shape[0]"),
            (
                "the post kernel",
                MHC_KERNELS,
                "    rows = x.shape[0] if chunk_rows is None else chunk_rows\n",
                "    rows = x.shape[0]\n",
            ),
            (
                "the mix-stats kernel",
                MHC_KERNELS,
                "    block_m = _block_m_for(m if chunk_rows is None else chunk_rows)\n    _hc_mix",
                "    block_m = _block_m_for(m)\n    _hc_mix",
            ),
            ("the bf16 mix-stats kernel", MHC_KERNELS, "rows = m if chunk_rows is None else chunk_rows", "rows = m"),
            ("the combine kernel", COMBINE, "rows = m if chunk_rows is None else chunk_rows", "rows = m"),
            (
                "the narrow post kernel",
                SPLIT_H,
                "rows = x.shape[0] if chunk_rows is None else chunk_rows",
                "rows = x.shape[0]",
            ),
        )
    ),
    # --- the Engram and the projections on a shard
    Mutation(
        "the Engram's image mask takes the first rank's token ids",
        ENGRAM,
        "            input_ids = shard_rows(input_ids, sp.shards)\n",
        "            input_ids = input_ids[: sp.shards.shard]\n",
        (f"{TWO_RANKS}[images]",),
    ),
    Mutation(
        "a self-check is not made",
        PLAN,
        "torch.equal(part[: hi - lo], full[lo:hi])",
        "True",
        ("test_engram.py::test_one_rank_that_disagrees_keeps_every_rank_on_the_whole_gemm[2]",),
    ),
    Mutation(
        "a self-check of one size speaks for all",
        PLAN,
        "        rows = sp.shards.rows\n        if rows not in self.equal:",
        "        rows = 0\n        if rows not in self.equal:",
        ("test_engram.py::test_one_rank_that_disagrees_keeps_every_rank_on_the_whole_gemm[2]",),
    ),
    Mutation(
        "full runs wkv on a shard",
        ENGRAM,
        'envs.SGLANG_PREFILL_SP_ENGRAM_WKV.get() == "shard"',
        "True",
        ("test_engram.py::test_full_never_runs_wkv_on_a_shard[2]",),
    ),
    Mutation(
        "one rank that agrees is enough",
        PLAN,
        "op=torch.distributed.ReduceOp.MIN",
        "op=torch.distributed.ReduceOp.MAX",
        ("test_engram.py::test_one_rank_that_disagrees_keeps_every_rank_on_the_whole_gemm[2]",),
    ),
    Mutation(
        "staged rows are another rank's",
        ENGRAM,
        "                rows[lo * cols : hi * cols],\n",
        "                rows[: (hi - lo) * cols],\n",
        ("test_engram.py::test_staged_rows_are_dequantized_by_their_owner_alone[2]",),
    ),
    Mutation(
        "the replaced input holds numbers",
        TRANSPORT,
        'float("nan")',
        "0.0",
        ("test_project_first.py::test_a_stray_read_of_the_replaced_input_shows",),
    ),
    # --- what enters
    Mutation(
        "the threshold excludes itself",
        PLAN,
        ".shape[0] >= parallel.prefill_sp_min_tokens",
        ".shape[0] > parallel.prefill_sp_min_tokens",
        ("test_eligibility.py::test_the_threshold[256-True-sharded-2]",),
    ),
    Mutation(
        "mixed and verify batches enter",
        PLAN,
        "forward_batch.forward_mode == ForwardMode.EXTEND",
        "forward_batch.forward_mode.is_extend()",
        ("test_eligibility.py::test_only_a_plain_eager_bf16_extend_enters[4-sharded]",),
    ),
    Mutation(
        "off enters",
        PLAN,
        "        configured_mode() is not PrefillSpMode.OFF\n",
        "        True\n",
        ("test_eligibility.py::test_only_a_plain_eager_bf16_extend_enters[4-sharded]",),
    ),
    Mutation(
        "a graph capture enters",
        PLAN,
        "        or get_is_capture_mode()\n",
        "",
        ("test_eligibility.py::test_only_a_plain_eager_bf16_extend_enters[4-sharded]",),
    ),
    Mutation(
        "a plan outlives its forward",
        PLAN,
        "    with get_forward().scoped(prefill_sp=None):\n        yield\n",
        "    yield\n",
        ("test_eligibility.py::test_no_plan_outlives_its_forward",),
    ),
    Mutation(
        "the odd rank is not the one that is named",
        PLAN,
        "for r, e in enumerate(decisions) if e == d",
        "for r, e in enumerate(decisions) if e != d",
        ("test_ranks_decide_alike.py::test_the_odd_rank_is_named[sharded-4096-stock-3]",),
    ),
    Mutation(
        "a sharded chunk takes the whole rows' path",
        STAGES,
        " or prefill_sp.sharded() is not None",
        "",
        (f"{TWO_RANKS}[many requests]",),
    ),
    Mutation(
        "pipeline parallelism is not refused",
        HOOK,
        "(cfg.pp_size > 1,",
        "(cfg.pp_size > 64,",
        ("test_refusals.py::test_each_reason_is_named[PP]",),
    ),
    Mutation(
        "a MoE of another group is not refused",
        PLAN,
        '("MoE", layer.mlp.tp_size)',
        '("MoE", world)',
        ("test_refusals.py::test_a_built_model_with_another_group_is_refused",),
    ),
)


class NoLongerApplies(Exception):
    pass


def mutated(mutation: Mutation, source: str) -> str:
    found = source.count(mutation.old)
    if found != 1:
        raise NoLongerApplies(f"{mutation.name}: its text stands {found} times in {mutation.file}, not once")
    return source.replace(mutation.old, mutation.new)


class Copy:
    """A scratch copy of the engine, written so that no stale bytecode survives a change."""

    def __init__(self, root: Path):
        self.tree = copy_tree(root)
        self._stamp = time.time()

    def read(self, file: str) -> str:
        return (self.tree / file).read_text(encoding="utf-8")

    def write(self, file: str, source: str) -> None:
        path = self.tree / file
        path.write_text(source, encoding="utf-8")
        # Bytecode is valid for a modification time in whole seconds and a size.
        self._stamp += 2
        os.utime(path, (self._stamp, self._stamp))


def imported_by_the_engine(tree: Path) -> list[str]:
    """Modules that an import of the engine loads and that are not the engine."""
    code = (
        "import sys; before = set(sys.modules); import ranks; ranks.import_engine(); "
        "print(*(name for name in sys.modules if name not in before and name.partition('.')[0] != 'sglang'))"
    )
    path = os.pathsep.join([str(tree), str(ENGINE)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"the engine does not import:\n{done.stderr}")
    return done.stdout.splitlines()[-1].split()


def run_tests(tree: Path, tests: tuple[str, ...], output) -> bool:
    """Whether the tests pass on ``tree``, in a forked process that has everything but the engine imported."""
    child = os.fork()
    if child == 0:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.path.insert(0, str(tree))
        importlib.invalidate_caches()
        import pytest
        import ranks

        nodes = [str(ENGINE / test) for test in tests]
        status = pytest.main(["-x", "-q", "--no-header", "--noconftest", "-p", "no:cacheprovider", *nodes])
        ranks.close_pools()
        sys.stdout.flush()
        os._exit(int(status))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        raise NoLongerApplies(f"pytest ended with {code}: the tests could not run: {', '.join(tests)}")
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to make (default: all)")
    parser.add_argument("--list", action="store_true", help="name them and make none")
    options = parser.parse_args()
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    assert len(by_name) == len(MUTATIONS)
    if options.list:
        print(*by_name, sep="\n")
        return 0
    unknown = [name for name in options.names if name not in by_name]
    if unknown:
        parser.error(f"no such mutation: {', '.join(unknown)} (--list names them)")
    chosen = [by_name[name] for name in options.names] or list(MUTATIONS)

    with TemporaryDirectory(prefix="mutations-") as scratch, TemporaryFile("w+") as output:
        copy = Copy(Path(scratch))
        changed = {}
        try:
            for mutation in chosen:
                changed[mutation.name] = mutated(mutation, copy.read(mutation.file))
        except NoLongerApplies as error:
            print(error, file=sys.stderr)
            return 2
        preload(imported_by_the_engine(copy.tree))
        everything = tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
        print(f"{len(chosen)} mutations; their {len(everything)} tests without any ...", flush=True)
        if not run_tests(copy.tree, everything, output):
            output.seek(0)
            print(output.read()[-6000:], file=sys.stderr)
            return 2
        survived = []
        width = max(len(mutation.name) for mutation in chosen)
        for mutation in chosen:
            original = copy.read(mutation.file)
            copy.write(mutation.file, changed[mutation.name])
            began = time.monotonic()
            try:
                passed = run_tests(copy.tree, mutation.tests, output)
            except NoLongerApplies as error:
                print(error, file=sys.stderr)
                return 2
            finally:
                copy.write(mutation.file, original)
            verdict = "SURVIVED" if passed else "caught"
            print(f"{mutation.name:{width}}  {verdict:8}  {time.monotonic() - began:5.1f} s", flush=True)
            if passed:
                survived.append(mutation.name)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutations caught")
    return 1 if survived else 0


def preload(names: list[str]) -> None:
    """Import what the engine needs, once, so that each run imports the engine alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                importlib.import_module(name)
            except Exception:
                # A module that only its package can import comes with the engine then.
                continue


if __name__ == "__main__":
    sys.exit(main())
