"""The nightly check keeps its report, tells each new drift once in one issue, and a release is complete or not made."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import NUMBERS, UPSTREAM, Fork, change
from upstreams import directory

REPOSITORY = Path(__file__).parents[2]
GH = f"""#!{sys.executable}
import json, pathlib, sys
file = pathlib.Path(__file__).with_name("issues.json")
issues = json.loads(file.read_text()) if file.exists() else []
command = sys.argv[2]
options = dict(a[2:].split("=", 1) for a in sys.argv[3:] if a.startswith("--") and "=" in a)
text = sys.stdin.read()
if sys.argv[1] == "label":
    sys.exit(0)
if command == "list":
    found = [dict(issue, number=n) for n, issue in enumerate(issues, 1) if issue["state"] == options["state"]]
    print(json.dumps([i for i in found if i["label"] == options["label"]][: int(options["limit"])]))
elif command == "create":
    issues.append(dict(state="open", label=options["label"], title=options["title"], body=text, comments=[]))
    print(f"https://example.org/issues/{{len(issues)}}")
else:
    issue = issues[int(sys.argv[3]) - 1]
    if command == "edit":
        issue["body"] = text
    elif command == "comment":
        issue["comments"].append(text)
    elif command == "close":
        issue["state"] = "closed"
        issue["comments"].append(options["comment"])
file.write_text(json.dumps(issues))
"""


class Runner:
    """A hosted runner: a checkout, a page for the job, and GitHub's issues behind `gh`."""

    def __init__(self, fork: Fork, place: Path):
        self.fork, self.page = fork, place / "page.md"
        shutil.copy(REPOSITORY / "apply.py", fork.root)
        (place / "bin").mkdir()
        (place / "cache").mkdir()
        (place / "cache" / "patchseries").symlink_to(fork.cache)
        (place / "bin" / "gh").write_text(GH)
        (place / "bin" / "gh").chmod(0o755)
        shutil.copytree(REPOSITORY / "ci", fork.root / "ci")
        self.environment = {
            **os.environ,
            "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "XDG_CACHE_HOME": str(place / "cache"),
            "GITHUB_STEP_SUMMARY": str(self.page),
        }
        self.kept = place / "bin" / "issues.json"

    def run(self, script: str, *arguments: str | Path, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, f"ci/{script}", *map(str, arguments)],
            cwd=self.fork.root, env={**self.environment, **environment}, capture_output=True, text=True,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def night(self, out: Path, *refs: str) -> tuple[int, str]:
        """Check and tell: the status of the check, and what was done about the issue."""
        status, _output = self.run("nightly_check.py", out, *refs)
        told, output = self.run("drift_issue.py", out / "report.json")
        assert told == 0, output
        return status, output.strip()

    @property
    def issues(self) -> list[dict]:
        return json.loads(self.kept.read_text()) if self.kept.exists() else []


@pytest.fixture
def runner(built, tmp_path) -> Runner:
    (tmp_path / "runner").mkdir()
    return Runner(built, tmp_path / "runner")


@pytest.fixture
def upstreams(tmp_path) -> dict[str, str]:
    """One upstream directory that changes from night to night, all under one name."""
    place = tmp_path / "upstream"
    contents = {
        "same": NUMBERS,
        "shifted": b"# top\n" + NUMBERS,
        "shifted more": b"# top\n# more\n" + NUMBERS,
        "clashing": change(NUMBERS, (b"value_5 = 5\n", b"value_5 = five\n")),
    }

    def become(name: str) -> str:
        shutil.rmtree(place, ignore_errors=True)
        return directory(place, {**UPSTREAM, "linear.py": contents[name]})

    return become


def test_the_report_is_kept_and_shown(runner, upstreams, tmp_path):
    status, output = runner.run("nightly_check.py", tmp_path / "out", upstreams("clashing"))
    assert status == 2 and "conflict" in output
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["verdict"] == "conflict"
    text = (tmp_path / "out" / "report.md").read_text()
    assert runner.page.read_text() == text and "edit-linear.patch" in text


def test_each_drift_is_told_once(runner, upstreams, tmp_path):
    out = tmp_path / "out"
    assert runner.night(out, upstreams("same")) == (0, "no drift") and runner.issues == []
    assert runner.night(out, upstreams("shifted"))[1] == "opened https://example.org/issues/1"
    assert runner.night(out, upstreams("shifted"))[1] == "nothing new for #1"
    assert runner.night(out, upstreams("shifted more"))[1] == "nothing new for #1"
    (issue,) = runner.issues
    assert "offset" in issue["body"] and issue["comments"] == []
    status, told = runner.night(out, upstreams("clashing"))
    assert status == 2 and told == "commented on #1: 1 new"
    (issue,) = runner.issues
    assert "conflict" in issue["body"] and "linear.py hunk 1 conflict" in issue["comments"][0]
    assert runner.night(out, upstreams("same"))[1] == "closed #1"
    assert runner.night(out, upstreams("shifted"))[1] == "opened https://example.org/issues/2"
    assert [issue["state"] for issue in runner.issues] == ["closed", "open"]


def test_an_upstream_that_cannot_be_had_is_no_drift_and_no_all_clear(runner, upstreams, tmp_path):
    runner.night(tmp_path / "out", upstreams("shifted"))
    assert runner.night(tmp_path / "out", "/nowhere") == (3, "no drift")
    assert [issue["state"] for issue in runner.issues] == ["open"]


def test_a_long_report_fits_into_an_issue(runner, upstreams, tmp_path):
    runner.night(tmp_path / "out", upstreams("shifted"))
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    found["upstreams"][0]["patches"][0]["cause"] = "because " * 10_000
    (tmp_path / "long.json").write_text(json.dumps(found))
    assert runner.run("drift_issue.py", tmp_path / "long.json")[0] == 0
    (issue,) = runner.issues
    assert len(issue["body"]) < 65_536 and "The rest is in the report" in issue["body"]
    assert runner.run("drift_issue.py", tmp_path / "long.json")[1].strip() == "nothing new for #1"


@pytest.mark.parametrize("text", [None, "", "{}", "[]"])
def test_no_report_is_said(runner, tmp_path, text):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    status, output = runner.run("drift_issue.py", tmp_path / "report.json")
    assert status == 3 and "is no report of --check" in output and runner.issues == []


def test_a_check_that_cannot_start_is_said(runner, tmp_path):
    (runner.fork.root / "series").write_text("")
    status, output = runner.run("nightly_check.py", tmp_path / "out", "main")
    assert status == 3 and "--check gave no report" in output and not (tmp_path / "out").exists()


def test_without_an_index_the_newest_release_is_unknown(runner, tmp_path):
    status, output = runner.run("nightly_check.py", tmp_path / "out", PIP_NO_INDEX="1")
    assert status == 3 and "does not tell the releases" in output


def test_gh_that_fails_is_said(runner, upstreams, tmp_path):
    runner.run("nightly_check.py", tmp_path / "out", upstreams("shifted"))
    Path(runner.environment["PATH"].split(os.pathsep)[0], "gh").write_text("#!/bin/sh\necho no token >&2\nexit 4\n")
    status, output = runner.run("drift_issue.py", tmp_path / "out" / "report.json")
    assert status == 3 and "gh issue list failed: no token" in output


def test_a_release_has_everything(runner, tmp_path):
    (runner.fork.root / "PATCHES.md").write_text("# The patches\n")
    (runner.fork.root / "docs" / "results").mkdir(parents=True)
    (runner.fork.root / "docs" / "results" / "prefill.md").write_text("| rows |\n")
    out = tmp_path / "release"
    status, output = runner.run("release.py", "1.2.3+fork.1", out)
    assert status == 0, output
    names = {path.name for path in out.iterdir()}
    assert {"PATCHES.md", "prefill.md", "NOTES.md", "SHA256SUMS", "sglang-1.2.3+fork.1.pyz"} < names
    assert sum(name.endswith(".whl") for name in names) == 1
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    assert len((out / "SHA256SUMS").read_text().splitlines()) == len(names) - 1
    assert "The measured results are attached." in (out / "NOTES.md").read_text()
    assert runner.run("release.py", "1.2.3+fork.1", out)[0] == 3


def test_a_release_without_measurements_says_so(runner, tmp_path):
    (runner.fork.root / "PATCHES.md").write_text("# The patches\n")
    assert runner.run("release.py", "1.2.3+fork.1", tmp_path / "release")[0] == 0
    assert "Nothing has been measured" in (tmp_path / "release" / "NOTES.md").read_text()


def test_a_tag_of_another_version_is_refused(runner, tmp_path):
    status, output = runner.run("release.py", "1.2.3+fork.2", tmp_path / "release")
    assert status == 1 and "upstream.toml says 1.2.3+fork.1" in output and not (tmp_path / "release").exists()
