"""Promise: the start-up log says which release and which patch series run."""

import json
from pathlib import Path

import pytest

RECORD = {
    "version": "9.9.9+spprefill.7",
    "upstream": {"package": "sglang", "release": "9.9.9", "tag": "v9.9.9", "commit": None},
    "series": {"sha256": "ab" * 32, "patches": ["one.patch", "two.patch"]},
    "files": {},
    "base_differs": {},
}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package's record would be."""
    import sglang

    monkeypatch.setattr(sglang, "__file__", str(tmp_path / "__init__.py"))
    return tmp_path / "_patchseries.json"


def said() -> str:
    from sglang.srt.utils.patch_series import describe_build

    return describe_build()


def test_the_record_is_said(record):
    record.write_text(json.dumps(RECORD))
    assert "v9.9.9 (wheel, no commit id) with 2 patches, series abababababab" in said()


def test_a_base_that_is_not_the_pinned_one_is_said(record):
    record.write_text(json.dumps({**RECORD, "base_differs": {"srt/x.py": None}}))
    assert said().endswith(", 1 files of another base")


def test_a_package_without_a_record_says_so(record):
    assert said().endswith(": no _patchseries.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"series": 1, "upstream": {}}', '{"series": {"sha256": 1}}'])
def test_a_broken_record_does_not_stop_the_server(record, text):
    record.write_text(text)
    assert ": unreadable _patchseries.json (" in said()
