"""Other upstreams than the pin: as directories and as git histories, and what a check says of them."""

import json
from pathlib import Path

import jsonschema
from forks import HEADER, Files, Fork, entry, git, write_files

from patchseries import report

SCHEMA = json.loads(Path(report.__file__).with_name(report.SCHEMA).read_text())

# One class and three functions; two of them have a block in common.
ENGINE = b'''\
"""An engine."""

import os


class Engine:
    def __init__(self, size):
        self.size = size
        self.rows = []

    def start(self, rows):
        self.rows = rows
        if self.size > 1:
            rows = split(rows, self.size)
            send(rows)
        return rows

    def stop(self):
        self.rows = []
        return self.size


def split(rows, size):
    step = len(rows) // size
    return rows[:step]


def send(rows):
    total = 0
    for row in rows:
        total += row
    print(total)
    return total


def receive(rows):
    count = 0
    for row in rows:
        total += row
    print(total)
    return total
'''


def add(fork: Fork, name: str, changes: dict, depends: str = "none", watches: str = "none") -> bytes:
    """Append a patch that sets files of the package (None removes one), with these header fields; returns its text."""
    before = getattr(fork, "patched", fork.upstream)
    after = {path: value for path, value in {**before, **changes}.items() if value is not None}
    header = HEADER.format(name=name).replace("Depends: none", f"Depends: {depends}")
    text = fork.patch_between(name, before, after, header.replace("Watches: none", f"Watches: {watches}"))
    fork.patched = after
    return fork.add(name, text).read_bytes()


def directory(path: Path, files: Files) -> str:
    """An upstream as a directory; returns its path."""
    write_files(path / "python" / "sglang", files)
    return str(path)


def history(path: Path, *versions: tuple[str, Files]) -> Path:
    """A git repository with a commit for each (subject, files of the package); the first has the pin's tag."""
    path.mkdir()
    git(path, "init", "--quiet")
    for number, (subject, files) in enumerate(versions):
        git(path, "rm", "-rq", "--ignore-unmatch", ".")
        write_files(path / "python" / "sglang", files)
        git(path, "add", "--all", "--force")
        for name, value in files.items():
            executable = entry(value)[1] == "100755"
            git(path, "update-index", f"--chmod={'+' if executable else '-'}x", f"python/sglang/{name}")
        git(path, "commit", "--quiet", "--allow-empty", "--message", subject)
        if number == 0:
            git(path, "tag", "v1.2.3")
    return path


def check(fork: Fork, *arguments: str) -> tuple[int, dict]:
    """`apply.py --check ... --json`: exit status and the report, which is valid and left the checkout alone."""
    before = fork.snapshot()
    status, output = fork.run("--check", *arguments, "--json")
    assert fork.snapshot() == before
    found, _end = json.JSONDecoder().raw_decode(output)
    jsonschema.validate(found, SCHEMA, jsonschema.Draft202012Validator)
    codes = {"clean": 0, "drift": 1, "conflict": 2, "error": 3}
    assert status == codes[found["verdict"]] == max(codes[each["verdict"]] for each in found["upstreams"])
    return status, found


def judged(fork: Fork, ref: str) -> dict:
    """The report on one upstream: `patches` and `symbols` by name."""
    (each,) = check(fork, ref)[1]["upstreams"]
    each["patches"] = {patch["name"]: patch for patch in each["patches"]}
    each["symbols"] = {symbol["symbol"]: symbol for symbol in each["symbols"]}
    return each


def only_hunk(fork: Fork, ref: str) -> dict:
    """The one hunk of the one patch of a fork."""
    (patch,) = judged(fork, ref)["patches"].values()
    (hunk,) = patch["hunks"]
    assert patch["verdict"] == hunk["verdict"]
    return hunk
