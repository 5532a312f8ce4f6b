"""What is asked of the engine, on every arm alike, and how two arms' answers are compared."""

import numpy

from bench import model
from bench.engine import BF16_EXPERTS, Arm

MODES = ("off", "transport", "exact", "sharded")
CHUNK = ("--chunked-prefill-size", "16384", "--max-total-tokens", "65536")


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

    def __init__(self, folder, world, modes=MODES, arguments=BF16_EXPERTS, environment=None, one_gpu=False, **widths):
        where = model.write(folder / "model", **widths)
        self.arms, self.results = {}, {}
        try:
            for mode in modes:
                sp = () if mode == "off" else ("--prefill-sp-mode", mode)
                self.arms[mode] = Arm(
                    mode,
                    where,
                    world,
                    (*arguments, *CHUNK, *sp),
                    environment=environment,
                    logs=folder / "logs",
                    one_gpu=one_gpu,
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
