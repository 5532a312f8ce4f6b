"""What is asked of the engine, on every arm alike, and how two arms' answers are compared."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy

from bench import model
from bench.engine import BF16_EXPERTS, Arm, ArmFailed
from bench.one_gpu import ULP_FAULT
from bench.trace import Noted, first_difference

MODES = ("off", "transport", "exact", "sharded")
DECODE_STEPS = 32


class Setup(NamedTuple):
    """One arm: the mode it runs in, and its environment."""

    mode: str
    environment: dict[str, str] = {}


SETUPS = {
    **{mode: Setup(mode) for mode in MODES},
    "ordered": Setup("sharded", {"SGLANG_PREFILL_SP_ORDERED_REDUCE": "1"}),
    "gathered": Setup("sharded", {"SGLANG_PREFILL_SP_PROJECT_FIRST": "0"}),
    "fault": Setup("sharded", {ULP_FAULT: "1"}),
}


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
    return [first, *zip(*arm.call("decode", DECODE_STEPS), strict=True)]


SCENARIOS = {f.__name__: f for f in (uneven_batch, long_prompt_in_chunks, prefix_hit, prefill_then_decode)}
SCENARIOS |= {f"{rows}_rows": (lambda arm, rows=rows: one_prompt(arm, rows)) for rows in (2047, 2048, 2049, 4096, 8191)}


def asked_for(request, known, parameters, **fixed) -> tuple[str, ...]:
    """Which of `known` the selected tests of a module name in one of `parameters`: `-k prefix_hit` runs that alone.

    fixed: Only tests that have these parameters count.
    """
    sets = [i.callspec.params for i in request.session.items if i.path == request.path and hasattr(i, "callspec")]
    named = {p.get(name) for p in sets if fixed.items() <= p.items() for name in parameters}
    return tuple(one for one in known if one in named)


class Outcome(NamedTuple):
    """Logits by step and rank, and by rank the checksums of the KV cache and of the rows on the way."""

    steps: list
    caches: list[dict]
    noted: Noted


class Engines:
    """The arms of one size: each is loaded, runs every scenario twice from an empty cache, and is closed.

    The first run of a size is checked and gathers attention's input whole; the second takes the paths that the first
    one's checks allow. An arm that fails fails the tests that ask for it, and no other.

    Args:
        names: Keys of `SETUPS`.
        scenarios: Keys of `SCENARIOS`, in the order in which they run.
        at_once: How many arms are loaded at one time.
        questions: By name, what else to ask of each arm: called with it after it was loaded.
        widths: Of the model (`model.write`).
    """

    def __init__(
        self,
        folder,
        world,
        names=MODES,
        scenarios=tuple(SCENARIOS),
        *,
        size=("--chunked-prefill-size", "16384", "--max-total-tokens", "65536"),
        arguments=BF16_EXPERTS,
        environment=None,
        at_once=None,
        one_gpu=False,
        questions=None,
        **widths,
    ):
        self.folder, self.world, self.one_gpu = folder, world, one_gpu
        self.where = model.write(folder / "model", **widths)
        self.arguments, self.environment = (*arguments, *size), environment or {}
        self.scenarios, self.questions = scenarios, questions or {}
        self.said, self.weights, self.answers, self.outcomes, self.failures = {}, {}, {}, {}, {}
        # Loading overlaps. NCCL's kernels of two arms would wait for each other on the GPUs; IPC's do not.
        self.turn = threading.Semaphore(len(names) if one_gpu else 1)
        with ThreadPoolExecutor(at_once or len(names)) as pool:
            list(pool.map(self.run_all, names))

    def run_all(self, name):
        setup = SETUPS[name]
        sp = () if setup.mode == "off" else ("--prefill-sp-mode", setup.mode)
        try:
            with Arm(
                name,
                self.where,
                self.world,
                (*self.arguments, *sp),
                environment=self.environment | setup.environment,
                logs=self.folder / "logs",
                one_gpu=self.one_gpu,
            ) as arm:
                self.said[name] = arm.wait()
                with self.turn:
                    self.weights[name] = arm.call("weights")
                    self.answers[name] = {question: ask(arm) for question, ask in self.questions.items()}
                    arm.call("trace")
                    for scenario in self.scenarios:
                        self.outcomes[name, scenario] = [self.run(arm, scenario) for _ in range(2)]
        except ArmFailed as failure:
            self.failures[name] = failure

    def run(self, arm, scenario):
        arm.call("reset")
        arm.call("noted")
        return Outcome(SCENARIOS[scenario](arm), arm.call("cache"), arm.call("noted"))

    def of(self, name, scenario) -> list[Outcome]:
        """The outcomes of the first and the second run."""
        self.check(name)
        return self.outcomes[name, scenario]

    def check(self, name):
        """Raise what made the arm fail: with its logs for the first test that asks, in a line for the others."""
        if name in self.failures:
            failure = self.failures[name]
            self.failures[name] = ArmFailed(f"{str(failure).splitlines()[0]} (logs: at the first test that failed so)")
            raise failure


def bits(x):
    return numpy.asarray(x).view(numpy.uint32)


def differences(one: Outcome, other: Outcome) -> list[str]:
    """Logits of every step and every KV page, on every rank, bit for bit; empty if all are equal."""
    found = []
    assert len(one.steps) == len(other.steps) > 0
    for step, (a, b) in enumerate(zip(one.steps, other.steps, strict=True)):
        for rank, (x, y) in enumerate(zip(a, b, strict=True)):
            assert numpy.isfinite(x).all() and numpy.abs(x).max() > 1e-3, "degenerate logits compare equal for nothing"
            if moved := int((bits(x) != bits(y)).sum()):
                largest = numpy.abs(numpy.asarray(x) - numpy.asarray(y)).max()
                found.append(f"step {step} rank {rank}: {moved} of {x.size} logits differ, by up to {largest:.2e}")
    for rank, (a, b) in enumerate(zip(one.caches, other.caches, strict=True)):
        assert any(written for _, written in a.values()), "no KV page was written: comparing the cache shows nothing"
        assert a.keys() == b.keys()
        for path in a:
            if len(pages := numpy.flatnonzero(a[path][0] != b[path][0])):
                found.append(f"rank {rank}: {len(pages)} pages of {path} differ, first page {pages[0] + 1}")
    return found


def assert_same(one: Outcome, other: Outcome):
    found = differences(one, other)
    if found:
        more = f"\n... and {len(found) - 12} more" if len(found) > 12 else ""
        where = first_difference(one.noted, other.noted)
        raise AssertionError("the runs differ; first in: " + where + "\n" + "\n".join(found[:12]) + more)


def assert_same_weights(engines, name, other):
    for one in (name, other):
        engines.check(one)
    for rank, (a, b) in enumerate(zip(engines.weights[name], engines.weights[other], strict=True)):
        assert a.keys() == b.keys()
        assert len(a) > 50, "the model has no weights"
        assert not [weight for weight in a if a[weight] != b[weight]], f"rank {rank}: the arms' weights differ"
