"""GPU tests: skipped, with the reason, on a machine that cannot run them."""

import pathlib

import pytest
from visible import GPUS


def pytest_report_header():
    if not GPUS:
        return "GPUs: none visible, so every test under tests/gpu is skipped"
    from bench.tree import describe

    return f"engine under test: {describe()}"


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents and not GPUS:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, none is visible"))
