"""What an engine tree does without this series' feature, as JSON: on the patched tree and on the stock one.

python stock_run.py WORLD ...   # the engine is what PYTHONPATH has in front
"""

import json
import sys
from dataclasses import replace

import cpu_kernels
from agreement import digest
from chunks import NO_TAIL, SHORT_TAIL, STANDARD, VISION
from model import BatchSpec, forward
from ranks import collectives, run_ranks

BATCHES = {
    "many requests": (STANDARD, BatchSpec((200, 50, 130, 7, 1))),
    "no tail, draft": (NO_TAIL, BatchSpec((150, 121), draft_layers=(0, 2, 5))),
    "short tail, prefix, draft": (SHORT_TAIL, BatchSpec((150, 121), prefix=(77, 40), draft_layers=(1, 5))),
    "images": (VISION, BatchSpec((150, 121), images=(31, 202))),
    "one row": (STANDARD, BatchSpec((1,))),
    "sm100": (replace(STANDARD, platform="sm100"), BatchSpec((130,))),
}


def run(rank, world, mode):
    """{batch: (digests, kernels launched, collectives)} of this rank; ``mode`` is "off", None on a stock tree."""
    results = {}
    for name, (spec, batch) in BATCHES.items():
        spec = replace(spec, mode=mode)
        cpu_kernels.launches()
        with collectives() as moved:
            output = forward(spec, batch, mode)
        digests = {name: digest(tensor) for name, tensor in output.tensors().items()}
        results[name] = (digests, cpu_kernels.launches(), moved)
    return results


if __name__ == "__main__":
    json.dump({world: run_ranks(int(world), run, None) for world in sys.argv[1:]}, sys.stdout)
