"""Expected gain of sequence-parallel prefill for other sizes and links, from what was measured on one machine.

    python -m bench.project --kernels ROWLOCAL.json --run PREFILL.json [--rows 16384] [--layers 20] [--engrams 2]

ROWLOCAL.json comes from `bench.rowlocal` (one GPU), PREFILL.json from `bench.prefill`; one that was put together from
elsewhere says so in its `source`, which is printed. The model of a chunk's device
time is row-local work + collectives + the rest, and the printed assumptions say how each scales. First it predicts the
measured run itself, stock and sharded, and says how far off it is; then W = 2, 4, 8 on NVLink and on 200 Gb/s RoCE.
"""

import argparse
import json
import pathlib
import sys
from typing import NamedTuple

HIDDEN, PROJECTED, LOOKUP, BF16 = 5120, 1792, 6144, 2
PER_LAYER = {"mix stats": 2, "post": 2, "combine + norm": 2}
PER_ENGRAM = {"wkv": 1, "gate": 1}
WORLDS = (2, 4, 8)


class Link(NamedTuple):
    """How fast a rank sends: seconds per collective call and step, and bytes per second."""

    name: str
    latency: float
    bandwidth: float

    def scatter_or_gather(self, size: int, world: int) -> float:
        """Milliseconds of a ring reduce-scatter or all-gather of a whole tensor of `size` bytes."""
        return 1e3 * (self.latency * (world - 1) + size * (world - 1) / world / self.bandwidth)

    def all_reduce(self, size: int, world: int) -> float:
        return 2 * self.scatter_or_gather(size, world)


class Shape(NamedTuple):
    """What of the model runs on every row."""

    layers: int
    engrams: int
    project_first: int
    """Layers that gather wqkv_a's columns instead of the attention input."""


def interpolate(points: dict[int, float], rows: float) -> float:
    """Milliseconds at `rows`, linear between measured row counts, proportional above, and flat below the smallest."""
    known = sorted(points)
    if rows <= known[0]:
        return points[known[0]]
    for a, b in zip(known, known[1:], strict=False):
        if rows <= b:
            return points[a] + (points[b] - points[a]) * (rows - a) / (b - a)
    return points[known[-1]] * rows / known[-1]


def row_local(kernels, shape: Shape, rows: float, world: int) -> float:
    """Milliseconds of all per-row work of a chunk of `rows` on one of `world` ranks that share them."""
    own = kernels[world]
    total = sum(shape.layers * n * interpolate(own[op], rows) for op, n in PER_LAYER.items())
    total += sum(shape.engrams * n * interpolate(own[op], rows) for op, n in PER_ENGRAM.items())
    total += shape.project_first * interpolate(own["wqkv_a"], rows)
    return total + (shape.layers - shape.project_first) * interpolate(kernels[1]["wqkv_a"], rows)


def stock_collectives(shape: Shape, rows: int, world: int, link: Link) -> float:
    sums = 2 * shape.layers * link.all_reduce(rows * HIDDEN * BF16, world)
    return sums + shape.engrams * link.all_reduce(rows * LOOKUP * BF16, world)


def sharded_collectives(shape: Shape, rows: int, world: int, link: Link) -> float:
    wide, narrow = (link.scatter_or_gather(rows * columns * BF16, world) for columns in (HIDDEN, PROJECTED))
    scatters = 2 * shape.layers * wide + shape.engrams * link.scatter_or_gather(rows * LOOKUP * BF16, world)
    return scatters + (2 * shape.layers - shape.project_first) * wide + shape.project_first * narrow


def fitted_link(collectives: list[dict], world: int) -> Link:
    """Bandwidth from the largest collective measured alone; latency is what that leaves of the smallest."""
    steps = {"all_reduce": 2, "reduce_scatter_tensor": 1, "all_gather_into_tensor": 1}
    known = sorted((c for c in collectives if c["name"] in steps), key=lambda c: c["bytes"])

    def moved(c):
        return steps[c["name"]] * c["bytes"] * (world - 1) / world

    big, small = known[-1], known[0]
    bandwidth = moved(big) / (big["ms"] / 1e3)
    latency = max(0.0, small["ms"] / 1e3 - moved(small) / bandwidth) / (steps[small["name"]] * (world - 1))
    return Link("NVLink, fitted to the run", latency, bandwidth)


def measured_shape(run, rows: str) -> Shape:
    """The full-row layers of the benchmark's model, and how many project first, read off its gathers."""
    said = run["arms"]["stock"]
    columns = [
        s["shapes"][0][-1]
        for s in run["rows"][rows]["sharded"]["collectives"]
        if s["name"] == "all_gather_into_tensor"
        for _ in range(s["count"])
    ]
    return Shape(said["late_layer_start"], 1, columns.count(PROJECTED))


def check(kernels, run, rows: str, link: Link) -> tuple[float, list[str]]:
    """Predict the measured run. (milliseconds that divide over the ranks, what to print)"""
    world, shape, figures = run["world"], measured_shape(run, rows), run["rows"][rows]
    stock, sharded = figures["stock"], figures["sharded"]
    rest = stock["device"] - row_local(kernels, shape, int(rows), 1) - stock["nccl"]
    predicted = {
        "stock": rest + row_local(kernels, shape, int(rows), 1) + stock_collectives(shape, int(rows), world, link),
        "sharded": rest
        + row_local(kernels, shape, int(rows), world)
        + sharded_collectives(shape, int(rows), world, link),
    }
    lines = [f"Check at {rows} rows, TP{world}, {shape.layers} full-row layers, {shape.project_first} project first:"]
    for name, f in (("stock", stock), ("sharded", sharded)):
        off = predicted[name] / f["device"] - 1
        verdict = "within 15 %" if abs(off) <= 0.15 else "MORE THAN 15 % OFF"
        lines.append(
            f"  {name:8} predicted {predicted[name]:8.2f} ms, measured {f['device']:8.2f} ms: {off:+.1%}, {verdict}"
        )
    gain = predicted["stock"] / predicted["sharded"] - 1, stock["device"] / sharded["device"] - 1
    lines.append(f"  gain     predicted {gain[0]:+.1%}, measured {gain[1]:+.1%}")
    return rest * world / shape.layers, lines


def project(kernels, shape: Shape, rows: int, divided: float, links) -> list[str]:
    """The table of expected device times. `divided`: milliseconds per full-row layer that all ranks share."""
    lines = [
        "| link | W | stock ms | row-local | collectives | sharded ms | row-local | collectives | tok/s gain |",
        "|" + "---|" * 9,
    ]
    for link in links:
        for world in WORLDS:
            rest = divided * shape.layers / world
            stock = row_local(kernels, shape, rows, 1), stock_collectives(shape, rows, world, link)
            sharded = row_local(kernels, shape, rows, world), sharded_collectives(shape, rows, world, link)
            before, after = rest + sum(stock), rest + sum(sharded)
            lines.append(
                f"| {link.name} | {world} | {before:.1f} | {stock[0]:.1f} | {stock[1]:.1f} | {after:.1f} "
                f"| {sharded[0]:.1f} | {sharded[1]:.1f} | {before / after - 1:+.1%} |"
            )
    return lines


ASSUMPTIONS = """Assumptions:
- device time only: launches hide behind it, and no collective overlaps compute;
- row-local work costs what `bench.rowlocal` measured for a shard of the chunk on this GPU: W divides the rows, not
  the time;
- what is neither row-local nor a collective divides evenly over W (heads, experts), as measured at W = {world};
- collectives are rings: (W - 1) / W of the tensor at the link's bandwidth plus a latency a step; RoCE: 200 Gb/s at
  90 %, 15 us a step;
- layers from the late-layer start on run on tail rows and cost nothing here; R is gathered for the tail alone."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--layers", type=int, default=20, help="layers that run on every row (released model: 20)")
    parser.add_argument("--engrams", type=int, default=2)
    parser.add_argument("--project-first", type=int, default=16, help="layers that gather wqkv_a's columns")
    args = parser.parse_args()
    try:
        measured = json.loads(pathlib.Path(args.kernels).read_text())
        kernels_tree, table = measured["tree"], measured["ms"]
        kernels = {
            int(world): {name: {int(m): ms for m, ms in points.items()} for name, points in operations.items()}
            for world, operations in table.items()
        }
        run = json.loads(pathlib.Path(args.run).read_text())
        rows = str(args.rows)
        missing = [need for need in ("stock", "sharded") if need not in run["rows"][rows]]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        sys.exit(f"bench.project: {error!r}: --kernels is bench.rowlocal's file, --run bench.prefill's with these rows")
    if missing:
        sys.exit(f"bench.project: {args.run} has no arm {' and no arm '.join(missing)} at {rows} rows")
    if needed := {1, run["world"], *WORLDS} - kernels.keys():
        sys.exit(
            f"bench.project: {args.kernels} has no times for {sorted(needed)} ranks: bench.rowlocal --worlds 1 2 4 8"
        )
    origin = run.get("source") or f"measured by bench.prefill: {run.get('command')}"
    print(f"Kernel times: {args.kernels}, measured by bench.rowlocal: {kernels_tree}")
    print(f"Run and collectives: {args.run}, {origin}\n")
    moves = [c for f in run["rows"].values() for arm in f.values() for c in arm["collectives"]]
    nvlink = fitted_link(moves, run["world"])
    roce = Link("RoCE 200 Gb/s", 15e-6, 0.9 * 200e9 / 8)
    divided, checked = check(kernels, run, rows, nvlink)
    print("\n".join(checked))
    print(f"\n{nvlink.name}: {nvlink.bandwidth / 1e9:.0f} GB/s, {nvlink.latency * 1e6:.0f} us a step")
    print(ASSUMPTIONS.format(world=run["world"]))
    print(f"\n{args.rows} rows, {args.layers} full-row layers, {args.engrams} Engrams, on {run['gpus']}:\n")
    print(
        "\n".join(
            project(kernels, Shape(args.layers, args.engrams, args.project_first), args.rows, divided, (nvlink, roce))
        )
    )


if __name__ == "__main__":
    main()
