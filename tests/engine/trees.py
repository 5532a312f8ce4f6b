"""The stock tree beside the patched one."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]

_scratch: list[TemporaryDirectory] = []


def engine_tree() -> Path:
    """The directory on the path whose sglang the tests import."""
    return Path(find_spec("sglang").origin).parents[1]


def copy_tree(target: Path) -> Path:
    """A copy of the engine's sources, for changing; native libraries are left out."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc", "multimodal_gen")
    return Path(shutil.copytree(engine_tree() / "sglang", target / "sglang", ignore=ignore)).parent


@cache
def stock_tree() -> Path:
    """The engine without the series: a copy with every patch taken back, or what STOCK_TREE names."""
    if "STOCK_TREE" in os.environ:
        return Path(os.environ["STOCK_TREE"])
    # Kept, and so removed, with this process.
    _scratch.append(TemporaryDirectory(prefix="stock-"))
    tree = copy_tree(Path(_scratch[-1].name, "python"))
    for name in reversed((ROOT / "series").read_text().split()):
        patch = [
            "patch",
            "--reverse",
            "--strip=1",
            "--fuzz=0",
            "--quiet",
            "--force",
            "--input",
            ROOT / "patches" / name,
        ]
        subprocess.run(patch, cwd=tree.parent, check=True)
    return tree


def python_path(tree: Path) -> dict[str, str]:
    """The environment of a process that imports ``tree``."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [tree, Path(__file__).parent, *(Path(entry) for entry in others if entry)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}


def on_stock(script: str, *arguments: object):
    """What a script of this folder prints as JSON when it runs on the stock tree."""
    command = [sys.executable, Path(__file__).with_name(script), *map(str, arguments)]
    done = subprocess.run(command, env=python_path(stock_tree()), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)
