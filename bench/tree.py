"""Which sglang this interpreter imports, by content: the first thing a measurement must say."""

import functools
import hashlib
import importlib.util
import pathlib


@functools.cache
def digest(root: pathlib.Path) -> str:
    """The first 12 hex digits of a SHA-256 over every .py file under `root` (relative path and bytes, in order)."""
    h = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        h.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:12]


def describe() -> str:
    """One line: the imported sglang's folder, content digest and version, and torch, Triton, NCCL and the GPUs."""
    import torch
    import triton

    root = pathlib.Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else "-"
    return (
        f"sglang {root} content {digest(root)} | torch {torch.__version__} triton {triton.__version__} "
        f"nccl {nccl} | {len(gpus)} x {gpus[0] if gpus else 'no GPU'}"
    )
