"""What --check prints and exits with; it touches nothing."""

import json

import jsonschema
import pytest
from forks import NUMBERS, change
from upstreams import SCHEMA, add, check, directory, judged

DRIFTED = b"# top\n" + NUMBERS
CLASHING = change(NUMBERS, (b"value_5 = 5\n", b"value_5 = five\n"))


@pytest.fixture
def fork(fork):
    add(fork, "edit.patch", {"linear.py": change(NUMBERS, (b"value_5 = 5\n", b"value_5 = 50\n"))})
    add(fork, "new.patch", {"new.py": b"NEW = 1\n"})
    return fork


def upstream(fork, tmp_path, name, linear):
    return directory(tmp_path / name, {**fork.upstream, "linear.py": linear})


def test_exit_status_is_the_worst_of_all(fork, tmp_path):
    same, drifted, clashing = (
        upstream(fork, tmp_path, name, content)
        for name, content in (("same", NUMBERS), ("drifted", DRIFTED), ("clashing", CLASHING))
    )
    for refs, status in (([], 0), ([same], 0), ([same, drifted], 1), ([clashing, drifted], 2), ([same, "no such"], 3)):
        assert check(fork, *refs)[0] == status
    assert check(fork, "--source", drifted)[0] == 1


def test_the_table_has_a_column_for_each_upstream(fork, tmp_path):
    refs = [upstream(fork, tmp_path, "same", NUMBERS), upstream(fork, tmp_path, "clashing", CLASHING)]
    output = fork.fails(2, "--check", *refs)
    (row,) = [
        line
        for line in output.splitlines()
        if line.startswith("edit.patch  ") and "clean" in line and "conflict" in line
    ]
    assert row.split() == ["edit.patch", "clean", "conflict"]
    assert "2 patches: 1 conflict, 1 clean; 2 hunks: 1 conflict, 1 clean" in output
    assert f"check: {refs[0]} clean, {refs[1]} conflict" in output


def test_markdown_stands_for_itself(fork, tmp_path):
    ref = upstream(fork, tmp_path, "clashing", CLASHING)
    _status, output = fork.run("--check", ref, "--markdown")
    assert output.startswith(f"# The series against {ref}: conflict\n")
    assert "2 patches, 2 hunks, 2 files" in output and "made for 1.2.3" in output
    assert "| edit.patch | conflict | 1 conflict |  |" in output
    assert "- `python/sglang/linear.py` hunk 1, line 2, in no function: **conflict**. " in output
    assert "the patch has `value_5 = 5`, upstream `value_5 = five`" in output


def test_the_schema_refuses_what_is_no_report(fork):
    _status, found = check(fork)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    for path in (("upstreams", 0, "patches", 0), ("upstreams", 0, "patches", 0, "hunks", 0), ("upstreams", 0)):
        broken = json.loads(json.dumps(found))
        place = broken
        for key in path:
            place = place[key]
        place["verdict"] = "fine"
        assert not validator.is_valid(broken)
        del place["verdict"]
        assert not validator.is_valid(broken)


def test_every_object_has_a_verdict(fork, tmp_path):
    add(fork, "watch.patch", {"other.py": b"def other():\n    return 2\n"}, watches="python/sglang/linear.py")
    _status, found = check(fork, upstream(fork, tmp_path, "clashing", CLASHING))
    (each,) = found["upstreams"]
    hunks = [hunk for patch in each["patches"] for hunk in patch["hunks"]]
    objects = [*each["patches"], *hunks, *each["symbols"]]
    assert len(each["patches"]) == 3 and len(hunks) == 3 and len(each["symbols"]) == 2
    assert all(one["verdict"] for one in objects)


def test_build_is_left_alone(fork, tmp_path):
    fork.make()
    before = fork.snapshot()
    fork.run("--check", upstream(fork, tmp_path, "clashing", CLASHING))
    assert fork.snapshot() == before and "up to date" in fork.ok()


def test_a_series_that_does_not_apply_to_its_own_pin_is_no_report(fork):
    fork.pin({**fork.upstream, "linear.py": CLASHING})
    assert "edit.patch does not apply" in fork.fails(2, "--check")


def test_nothing_to_check_is_a_failure(fork):
    (fork.root / "series").write_text("")
    for path in (fork.root / "patches").iterdir():
        path.unlink()
    assert "lists no patch" in fork.fails(3, "--check")


def test_an_offset_of_a_cumulative_series_is_measured_on_the_patches_before(fork, tmp_path):
    add(fork, "again.patch", {"linear.py": change(fork.patched["linear.py"], (b"value_5 = 50\n", b"value_5 = 55\n"))})
    found = judged(fork, upstream(fork, tmp_path, "drifted", DRIFTED))["patches"]
    assert [found[name]["hunks"][0]["cause"] for name in ("edit.patch", "again.patch")] == ["+1 lines", "+1 lines"]
