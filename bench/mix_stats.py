"""Are the hyper-connection mix stats the same from run to run, and what does a launch form cost?

The split-K kernel behind `hc_mix_stats_sinkhorn_bf16x3` is launched again and again on one input. Per row count
and launch form (BLOCK_M, num_stages) the table says how many runs repeat the first one bit for bit, how many
partial products moved and by how much, the largest error against float64, and the time of the kernel. The form
`tree` is whatever the imported sglang launches. Needs one CUDA GPU; on Hopper the stock forms are not repeatable
(docs/upstream/mix-stats-hopper.md).

    python -m bench.mix_stats [--rows 128 2048 8192] [--forms tree 64x3 64x1] [--runs 40] [--json FILE]
"""

import argparse
import json
import sys

import torch
import triton

from bench.tree import describe

HIDDEN, STREAMS, SLICES, BLOCK_K, MIX = 5120, 4, 16, 64, 24
ROWS = (128, 256, 512, 1024, 2048, 3072, 4095, 4096, 8192, 16384)
FORMS = ("tree", "64x3", "64x2", "64x1", "128x3", "128x1")


def inputs(rows, seed=0):
    """x [rows, 4 * 5120] bf16 and the mixing weight [24, 4 * 5120] fp32 at the scale of a trained layer."""
    gen = torch.Generator(device="cuda").manual_seed(seed)
    width = STREAMS * HIDDEN
    x = torch.randn(rows, width, device="cuda", generator=gen).bfloat16()
    weight = torch.empty(MIX, width, device="cuda").uniform_(-0.04, 0.04, generator=gen)
    return x, weight


def partial_products(x, parts, block_m, stages):
    """One launch of the split-K kernel: products [16, rows, 24] and row sums of squares [16, rows], both fp32."""
    from sglang.kernels.ops.layernorm.mhc import _hc_mix_stats_bf16x3_kernel

    rows, width = x.shape
    products = torch.empty(SLICES, rows, MIX, device=x.device)
    squares = torch.empty(SLICES, rows, device=x.device)
    _hc_mix_stats_bf16x3_kernel[(triton.cdiv(rows, block_m), SLICES)](
        x,
        *parts,
        products,
        squares,
        rows,
        K=width,
        K_PER_SLICE=width // SLICES,
        MIX_COLS=MIX,
        MIX_PAD=32,
        BLOCK_K=BLOCK_K,
        BLOCK_M=block_m,
        num_warps=4,
        num_stages=stages,
    )
    return products, squares


def triplet(x, parts):
    """What the imported sglang computes: pre [rows, 4], post [rows, 4], comb [rows, 4, 4] as one [rows, 24]."""
    from sglang.kernels.ops.layernorm.mhc import hc_mix_stats_sinkhorn_bf16x3

    scale = torch.full((3,), 0.03, device=x.device)
    base = torch.linspace(-3, 3, MIX, device=x.device)
    return torch.cat([t.flatten(1) for t in hc_mix_stats_sinkhorn_bf16x3(x, parts, scale, base, 20, 1e-20, 1e-6)], 1)


def launcher(form, x, parts):
    """A function that runs `form` once and returns its result as one tensor."""
    if form == "tree":
        return lambda: triplet(x, parts)
    block_m, stages = map(int, form.split("x"))
    return lambda: partial_products(x, parts, block_m, stages)[0]


def repeat(run, runs):
    """How far `runs` calls stray from the first: (equal runs, most elements moved in one run, largest move)."""
    first, equal, moved, largest = run().clone(), 0, 0, 0.0
    for _ in range(runs):
        again = run()
        n = int((again != first).sum())
        equal += n == 0
        moved = max(moved, n)
        largest = max(largest, float((again - first).abs().max()))
    return equal, moved, largest


def error(products, x, weight):
    """Largest error of the summed products [rows, 24] against float64, relative to the largest true value."""
    true = x.double() @ weight.double().T
    return float((products.double().sum(0) - true).abs().max() / true.abs().max())


def measure(rows, form, runs):
    from sglang.kernels.ops.layernorm.mhc import split_bf16_hc_weight

    x, weight = inputs(rows)
    parts = split_bf16_hc_weight(weight)
    run = launcher(form, x, parts)
    equal, moved, largest = repeat(run, runs)
    row = {
        "rows": rows,
        "form": form,
        "runs": runs,
        "equal": equal,
        "elements": run().numel(),
        "moved": moved,
        "largest": largest,
        "ms": triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median"),
    }
    if form != "tree":
        block_m, stages = map(int, form.split("x"))
        row["error"] = max(error(run(), x, weight) for _ in range(5))
        # A row's sum has one order whatever the tile height: the same bits as the unpipelined 128-row tile.
        row["same_bits"] = torch.equal(run(), partial_products(x, parts, 128, 1)[0])
        row["squares_equal"] = repeat(lambda: partial_products(x, parts, block_m, stages)[1], runs)[0]
    return row


def by_slot(rows, runs):
    """Which of the three weight parts moves: the high part in one slot, zeros in the other two (form 64x3)."""
    from sglang.kernels.ops.layernorm.mhc import split_bf16_hc_weight

    x, weight = inputs(rows)
    high = split_bf16_hc_weight(weight)[0]
    true = x.double() @ high.double().T
    out = []
    for slot, name in enumerate(("hi", "mid", "lo")):
        parts = [torch.zeros_like(high)] * 3
        parts[slot] = high
        run = launcher("64x3", x, parts)
        equal, moved, largest = repeat(run, runs)
        worst = max(float((run().double().sum(0) - true).abs().max()) for _ in range(5))
        out.append(
            {
                "rows": rows,
                "slot": name,
                "runs": runs,
                "equal": equal,
                "moved": moved,
                "largest": largest,
                "error": worst / float(true.abs().max()),
            }
        )
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--forms", nargs="+", default=FORMS, help="tree, or BLOCK_MxSTAGES such as 64x3")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--slots", type=int, nargs="*", default=[2048], help="row counts of the per-part table")
    parser.add_argument("--json", help="write the rows of both tables here")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("mix_stats: no CUDA GPU is visible; run this on one")
    print(describe())
    print("  rows   form    equal   moved       of   largest     error  bits      ms")
    table = []
    for rows in args.rows:
        for form in args.forms:
            if form == "tree" and not 32 <= rows <= 65536:
                continue
            r = measure(rows, form, args.runs)
            table.append(r)
            print(
                f"{rows:6d} {form:>6} {r['equal']:3d}/{r['runs']:<4d} {r['moved']:7d} {r['elements']:8d} "
                f"{r['largest']:9.2e} {r.get('error', float('nan')):9.2e} "
                f"{'same' if r.get('same_bits') else '-':>5} {r['ms']:7.4f}",
                flush=True,
            )
    slots = [s for rows in args.slots for s in by_slot(rows, args.runs)]
    for s in slots:
        print(
            f"rows {s['rows']}: high part in slot {s['slot']:>3}: {s['equal']}/{s['runs']} equal, "
            f"{s['moved']} moved, largest {s['largest']:.2e}, error {s['error']:.2e}"
        )
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"tree": describe(), "launches": table, "slots": slots}, f, indent=1)


if __name__ == "__main__":
    main()
