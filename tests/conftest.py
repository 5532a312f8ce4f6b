"""Which engine the tests import: shown first, and refused if it is not the patched tree."""

from pathlib import Path

import pytest

from patchseries import installation, pin, series
from patchseries.errors import ToolError
from patchseries.listing import read_entry

ROOT = Path(__file__).parents[1]


def engine() -> tuple[str, bool]:
    """What an import of the engine finds, for people, and whether the files that the series touches are the patched
    ones there. It is told by content: a path, a version or an installed distribution proves nothing."""
    pinned = pin.load(ROOT / "upstream.toml")
    patches = series.load(ROOT / "series", ROOT / "patches")
    if pinned.products is None:
        return "upstream.toml has no [products]", False
    package = installation.locate(pinned.package)
    prefix = f"python/{pinned.package}/"
    files = {path: package / path.removeprefix(prefix) for path in series.touched(patches)}
    found = {path: read_entry(file) for path, file in files.items() if file.is_file()}
    digest = series.touched_digest(found, patches)
    patched = digest == pinned.products.touched_after
    state = "the patched tree" if patched else "NOT the patched tree"
    shown = package.relative_to(ROOT) if package.is_relative_to(ROOT) else package
    return f"{shown}, {len(found)} touched files, sha256 {digest[:12]}: {state}", patched


def pytest_report_header() -> str:
    try:
        return f"{pin.load(ROOT / 'upstream.toml').package}: {engine()[0]}"
    except ToolError as error:
        return f"engine: {error.message}"


@pytest.fixture(scope="session")
def _patched_engine() -> None:
    try:
        what, patched = engine()
    except ToolError as error:
        pytest.fail(error.message, pytrace=False)
    if not patched:
        pytest.fail(f"the tests import {what}; run `make`, and put build/python first on PYTHONPATH", pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ROOT / "tests" / "tool" not in item.path.parents:
            item.fixturenames.insert(0, "_patched_engine")
