"""The output that README.md shows is that of the pin."""

import re
from pathlib import Path

from patchseries import pin, series

ROOT = Path(__file__).parents[2]


def test_the_numbers_are_those_of_the_pin():
    text = (ROOT / "README.md").read_text()
    pinned = pin.load(ROOT / "upstream.toml")
    patches = series.load(ROOT / "series", ROOT / "patches")
    shown = {
        rf"build/ is {re.escape(pinned.version)}: (\d+) patches": str(len(patches)),
        r"tree (\w+)\), patched tree": pinned.products.pristine_tree[:12],
        r"patched tree (\w+)": pinned.products.patched_tree[:12],
        r"touched files, sha256 (\w+)": pinned.products.touched_after[:12],
        r"build/python/sglang, (\d+) touched files": str(len(series.touched(patches))),
    }
    for pattern, value in shown.items():
        assert re.findall(pattern, text) == [value], pattern


def test_every_path_it_names_exists():
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"\]\(([\w./-]+)\)", text) + re.findall(r"`((?:tests|patchseries|patches)(?:/\w+)*)/?`", text)
    assert len(named) > 5
    for path in named:
        assert (ROOT / path).exists(), path
