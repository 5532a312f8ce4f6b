"""Does an engine repeat itself? One prompt is prefilled again and again, and the logits are compared bit for bit.

    python -m bench.repeat TREE [TREE ...] [--rows 1024 2048 3072 4096] [--runs 8]

TREE is a folder that holds an sglang package; all trees run on the same GPUs at the same tensor-parallel size, each in
processes of its own. Per tree and row count: how many different results, how many logits moved in any run, by how much,
and the largest logit beside it.
"""

import argparse
import sys
import tempfile

import numpy

from bench import model
from bench.engine import BF16_EXPERTS, Arm, ArmFailed

POOL = ("--max-total-tokens", "32768", "--mem-fraction-static", "0.95")
"""The tokens bound the KV pool. The fraction only has to pass while other trees load on the same GPUs."""


def spread(arm: Arm, rows: int, runs: int) -> dict:
    """`runs` prefills of one prompt of `rows` tokens, each from an empty cache."""
    results = []
    for _ in range(runs):
        arm.call("reset")
        results.append(arm.call("extend", [{"name": "a", "seed": 1, "tokens": rows, "end": rows}])[0])
    first = results[0]
    return {
        "rows": rows,
        "runs": runs,
        "different": len({r.tobytes() for r in results}),
        "moved": max(int((r != first).sum()) for r in results),
        "logits": first.size,
        "largest": max(float(numpy.abs(r - first).max()) for r in results),
        "scale": float(numpy.abs(first).max()),
        "next_tokens": len({int(r.argmax()) for r in results}),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[1024, 2048, 3072, 4096])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--world", type=int, help="tensor-parallel size; default: the visible GPUs")
    args = parser.parse_args()
    import torch

    world = args.world or torch.cuda.device_count()
    if not world:
        sys.exit("bench.repeat: no CUDA GPU is visible; run this on one")
    where = model.write(tempfile.mkdtemp(prefix="model-"))
    arms = {}
    try:
        for number, tree in enumerate(args.trees):
            arms[tree] = Arm(f"tree{number}", where, world, (*BF16_EXPERTS, *POOL), tree)
        for tree, arm in arms.items():
            print(arm.wait()["tree"])
            for rows in args.rows:
                s = spread(arm, rows, args.runs)
                print(
                    f"{tree} {rows} rows: {s['different']} different results of {s['runs']} runs, {s['moved']} of "
                    f"{s['logits']} logits moved by up to {s['largest']:.2e} (largest logit {s['scale']:.2f}), "
                    f"{s['next_tokens']} different next tokens",
                    flush=True,
                )
    except ArmFailed as error:
        sys.exit(f"bench.repeat: {error}")
    finally:
        for arm in arms.values():
            arm.close()


if __name__ == "__main__":
    main()
