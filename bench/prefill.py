"""Prefill with and without sequence parallelism, beside the stock engine, in one run on the GPUs of this machine.

    python -m bench.prefill --stock STOCK_TREE --patched PATCHED_TREE --out RESULTS [--rows 4096 16384] [--repeats 7]

Every arm is the engine at TP n in processes of its own: the stock tree, and the patched tree in each mode. All arms are
loaded before the first measurement, have the same weights and get the same random prompts in turn, so they share one
state of the machine. Results: RESULTS.json (everything), RESULTS.md (tables), RESULTS.png.

Per arm and row count: wall time and tokens/s (median), device time (sum of kernel times: median over profiles, mean
over ranks), of it NCCL (the least over ranks: a rank that comes early waits inside its kernel) and row-local work; peak
activation memory; and the chunk's collectives run alone. Two limits: stock's row-local time divided by the ranks, and
the arm's own collectives at the speed they have alone.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

from bench import model
from bench.engine import BF16_EXPERTS, Arm, ArmFailed

MODES = ("off", "transport", "exact", "sharded")
HYPER_CONNECTION = re.compile(r"hc_mix|hc_combine|mhc_|engram_gate")
COLLECTIVE = re.compile(r"nccl|cross_device_reduce|all_reduce|allreduce")
GEMMS = ("engram.wkv", "self_attn.wqkv_a")
"""Row-local GEMMs carry a library's kernel names: they are timed around the module instead."""


def median(values):
    return statistics.median(list(values))


def summed(kernels, pattern):
    return sum(ms for name, (ms, _) in kernels.items() if pattern.search(name))


def measure(arms, rows, repeats, profiles):
    """One row count on every arm in turn. {arm: figures}, times in milliseconds."""
    for arm in arms.values():
        for _ in range(2):
            arm.call("prefill", rows)
    walls = {name: [] for name in arms}
    digests = {name: set() for name in arms}
    order = list(arms)
    for repeat in range(repeats):
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            answers = arms[name].call("prefill", rows)
            walls[name].append(max(seconds for seconds, _ in answers) * 1e3)
            digests[name] |= {digest for _, digest in answers}
    traces = {name: [] for name in arms}
    for _ in range(profiles):
        for name, arm in arms.items():
            traces[name].append(arm.call("kernels", rows))
    out = {}
    for name, arm in arms.items():
        ranks = range(arm.world)
        totals = [[sum(ms for ms, _ in t[r].values()) for r in ranks] for t in traces[name]]
        gemms = arm.call("modules", rows, GEMMS)
        collectives = arm.call("collectives", rows)
        hyper = median(statistics.mean(summed(t[r], HYPER_CONNECTION) for r in ranks) for t in traces[name])
        gemm = {ending: statistics.mean(g.get(ending, 0.0) for g in gemms) for ending in GEMMS}
        out[name] = {
            "wall": median(walls[name]),
            "walls": walls[name],
            "tokens_per_s": rows / median(walls[name]) * 1e3,
            "device": median(statistics.mean(t) for t in totals),
            "nccl": median(min(summed(t[r], COLLECTIVE) for r in ranks) for t in traces[name]),
            "hyper_connection": hyper,
            "gemms": gemm,
            "row_local": hyper + sum(gemm.values()),
            "peak_bytes": max(arm.call("peak", rows)),
            "collectives": collectives[0],
            "collectives_alone": sum(
                c["count"] * min(r[i]["ms"] for r in collectives) for i, c in enumerate(collectives[0])
            ),
            "logits": sorted(digests[name]),
            "kernels": sorted(((n, ms, k) for n, (ms, k) in traces[name][-1][0].items()), key=lambda k: -k[1])[:60],
        }
    return out


def limits(figures, world):
    """Adds both limits and the ratio of each arm's figure to them."""
    stock = figures["stock"]
    for name, f in figures.items():
        f["row_local_limit"] = stock["row_local"] / (world if name in ("exact", "sharded") else 1)
        f["device_to_stock"] = f["device"] / stock["device"]
        f["hyper_connection_to_stock"] = f["hyper_connection"] / stock["hyper_connection"]
        f["peak_to_stock"] = f["peak_bytes"] / stock["peak_bytes"]
        f["row_local_to_limit"] = f["row_local"] / f["row_local_limit"]
        f["nccl_to_limit"] = f["nccl"] / f["collectives_alone"] if f["collectives_alone"] else None
        f["logits_equal_stock"] = f["logits"] == stock["logits"] and len(f["logits"]) == 1


def tables(results):
    """The run as Markdown."""
    lines = [f"{results['gpus']}, TP{results['world']}; model: {results['model']}", ""]
    lines += [f"- {name}: {said['tree']}" for name, said in results["arms"].items()]
    lines += ["", f"Command: `{results['command']}`", ""]
    lines += [
        "| rows | arm | wall ms | tok/s | device ms | to stock | hc kernels ms | to stock | row-local ms | to limit"
        " | NCCL ms | alone ms | to limit | peak MiB | to stock | logits |",
        "|" + "---|" * 16,
    ]
    for rows, figures in results["rows"].items():
        for name, f in figures.items():
            ratio = f"{f['nccl_to_limit']:.2f}" if f["nccl_to_limit"] else "-"
            same = "equal" if f["logits_equal_stock"] else "differ" if len(f["logits"]) == 1 else "unsteady"
            lines.append(
                f"| {rows} | {name} | {f['wall']:.2f} | {f['tokens_per_s']:,.0f} | {f['device']:.2f} "
                f"| {f['device_to_stock']:.3f} | {f['hyper_connection']:.2f} | {f['hyper_connection_to_stock']:.3f} "
                f"| {f['row_local']:.2f} | {f['row_local_to_limit']:.2f} | {f['nccl']:.2f} "
                f"| {f['collectives_alone']:.2f} | {ratio} | {f['peak_bytes'] / 2**20:,.0f} | {f['peak_to_stock']:.3f} "
                f"| {same} |"
            )
    lines += ["", "Collectives of one chunk (count, operation, shapes, ms of one alone):", ""]
    for rows, figures in results["rows"].items():
        for name, f in figures.items():
            moves = ", ".join(
                f"{c['count']} x {c['name']} {'/'.join(map(str, c['shapes']))} {c['ms']:.3f}"
                for c in f["collectives"]
                if c["bytes"] >= 1 << 20
            )
            lines.append(f"- {rows} {name}: {moves}")
    return "\n".join(lines) + "\n"


def plot(results, path):
    """Tokens per second of every arm, and where the device time of each goes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    rows = list(results["rows"])
    for name in results["arms"]:
        left.plot(
            [int(r) for r in rows], [results["rows"][r][name]["tokens_per_s"] for r in rows], marker="o", label=name
        )
    left.set(xscale="log", xlabel="rows in the chunk", ylabel="tokens/s (wall)", title="prefill")
    left.set_xticks([int(r) for r in rows], rows)
    left.set_ylim(bottom=0)
    left.legend()
    parts = {
        "row-local": lambda f: f["row_local"],
        "NCCL": lambda f: f["nccl"],
        "attention, experts, rest": lambda f: f["device"] - f["row_local"] - f["nccl"],
    }
    labels, bottoms = [], []
    bars = [(r, name) for r in rows for name in results["arms"]]
    for part, of in parts.items():
        heights = [of(results["rows"][r][name]) / results["rows"][r]["stock"]["device"] for r, name in bars]
        right.bar(range(len(bars)), heights, bottom=bottoms or None, label=part)
        bottoms = [a + b for a, b in zip(bottoms or [0.0] * len(bars), heights, strict=True)]
    labels = [f"{r} {name}" for r, name in bars]
    right.set_xticks(range(len(bars)), labels, rotation=90, fontsize=7)
    right.set(ylabel="device time / stock's", title="where the device time goes")
    right.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", required=True, help="folder that holds the stock sglang package")
    parser.add_argument("--patched", required=True, help="folder that holds the patched sglang package")
    parser.add_argument("--out", required=True, help="results go to OUT.json, OUT.md and OUT.png")
    parser.add_argument("--rows", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--world", type=int, help="tensor-parallel size; default: the visible GPUs")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profiles", type=int, default=3)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--logs", help="folder for the ranks' logs")
    args = parser.parse_args()
    import torch

    world = args.world or torch.cuda.device_count()
    if world < 2:
        sys.exit(f"bench.prefill: needs 2 GPUs or more, {world} visible")
    for tree in (args.stock, args.patched):
        if not (pathlib.Path(tree) / "sglang" / "__init__.py").is_file():
            sys.exit(f"bench.prefill: {tree} holds no sglang package; name the folder above it")
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    where = model.write(tempfile.mkdtemp(prefix="model-"), layers=args.layers)
    size = ("--chunked-prefill-size", str(max(args.rows)), "--max-total-tokens", str(2 * max(args.rows) + 8192))
    arms = {}
    try:
        arms["stock"] = Arm("stock", where, world, (*BF16_EXPERTS, *size), args.stock, logs=args.logs)
        for mode in args.modes:
            sp = () if mode == "off" else ("--prefill-sp-mode", mode)
            arms[mode] = Arm(mode, where, world, (*BF16_EXPERTS, *size, *sp), args.patched, logs=args.logs)
        said = {name: arm.wait() for name, arm in arms.items()}
        for name, s in said.items():
            print(f"{name}: {s['tree']}", flush=True)
        results = {
            "arms": said,
            "world": world,
            "gpus": torch.cuda.get_device_name(0),
            "rows": {},
            "model": f"{args.layers} layers of real width, 32 experts, bf16, eager",
            "command": "python -m bench.prefill " + " ".join(sys.argv[1:]),
        }
        for rows in args.rows:
            figures = measure(arms, rows, args.repeats, args.profiles)
            limits(figures, world)
            results["rows"][str(rows)] = figures
            out.with_suffix(".json").write_text(json.dumps(results, indent=1))
            out.with_suffix(".md").write_text(tables(results))
            for name, f in figures.items():
                print(
                    f"{rows} {name}: wall {f['wall']:.2f} device {f['device']:.2f} ({f['device_to_stock']:.3f} of "
                    f"stock) hc {f['hyper_connection']:.2f} nccl {f['nccl']:.2f} peak {f['peak_to_stock']:.3f}",
                    flush=True,
                )
    except ArmFailed as error:
        sys.exit(f"bench.prefill: {error}")
    finally:
        for arm in arms.values():
            arm.close()
    plot(results, out.with_suffix(".png"))
    print(tables(results))


if __name__ == "__main__":
    main()
