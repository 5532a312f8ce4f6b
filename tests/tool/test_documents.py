"""What the documents say is so: commands run or say what they need, and texts of the engine are the engine's."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import apply
from patchseries import delivery
from patchseries.build import Project
from patchseries.console import Console
from patchseries.store import Store

ROOT = apply.ROOT
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPERATING = ROOT / "docs" / "operating.md"
RUN = ("make", "make wheel", "make overlay", "PYTHONPATH=build/python python3 dist/")
"""Commands that this test runs, by how they begin, in the order in which a reader meets them."""
ELSEWHERE = {"make test": "tests/conftest.py", "make edit": "tests/tool/test_quilt.py"}
"""First commands of blocks that other tests go through: this very run, and editing by hand."""


@dataclass(frozen=True)
class Block:
    """A fenced block of commands. needs: the comment that says what it needs, if the block has one."""

    document: Path
    commands: tuple[str, ...]
    needs: str | None


def blocks() -> list[Block]:
    found = []
    for document in DOCUMENTS:
        for text in re.findall(r"^```(?:console|sh|bash|shell)\n(.*?)^```", document.read_text(), re.M | re.S):
            lines = text.splitlines()
            needs = lines[0] if lines[0].startswith("# needs ") else None
            commands = [line[2:].split("  #")[0].strip() for line in lines if line.startswith("$ ")]
            assert commands, f"{document}: a block without a command"
            found.append(Block(document, tuple(commands), needs))
    return found


def fenced_text(document: Path, start: str) -> list[str]:
    """Lines of the text blocks of a document that begin with `start`."""
    texts = re.findall(r"^```text\n(.*?)^```", document.read_text(), re.M | re.S)
    return [line for text in texts for line in text.splitlines() if line.startswith(start)]


def runs_here(command: str) -> bool:
    return command in RUN or command.startswith(RUN[-1])


@pytest.fixture(scope="module")
def engine() -> dict[str, str]:
    """The patched files of the engine, by path below the package."""
    made = delivery.make(Project(ROOT), Store(apply.default_cache()), Console(quiet=True))
    return {path: content.decode() for path, content in made.changed.items()}


def test_every_command_is_run_or_says_what_it_needs():
    checked = 0
    for block in blocks():
        for command in block.commands:
            checked += 1
            tested = runs_here(command) or (ROOT / ELSEWHERE.get(block.commands[0], "nowhere")).is_file()
            assert bool(block.needs) != tested, f"{block.document.name}: {command!r}: {block.needs or 'not marked'}"
    assert checked > 20


def test_the_commands_run(tmp_path):
    """In a copy of this repository, one after the other; what they print is in the documents."""
    commands = [command for block in blocks() if not block.needs for command in block.commands if runs_here(command)]
    shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".*", "build", "dist"), symlinks=True)
    tools = tmp_path / "copy" / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tools / "python").chmod(0o755)
    (tools.parent / "tools").touch()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    output = ""
    for command in sorted(set(commands), key=lambda c: next(i for i, start in enumerate(RUN) if c.startswith(start))):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path / "copy", env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        output += done.stdout
    assert len(set(commands)) == len(RUN)
    assert "the content is the patched tree" in output and ".whl, sha256 " in output and ".pyz, sha256 " in output


def logged(tree: ast.AST) -> list[str]:
    """Regular expressions of the lines that a module logs on rank 0."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        if getattr(call.func, "id", "") == "log_info_on_rank0":
            text = call.args[1]
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            found.append("".join(re.escape(p.value) if isinstance(p, ast.Constant) else ".+?" for p in parts))
    return found


def test_the_start_up_lines_are_the_engines(engine):
    patterns = logged(ast.parse(engine["srt/layers/prefill_sp.py"]))
    lines = fenced_text(OPERATING, "Prefill sequence parallelism")
    assert len(patterns) == 3
    for line in lines:
        assert any(re.fullmatch(pattern, line) for pattern in patterns), line
    for pattern in patterns:
        assert any(re.fullmatch(pattern, line) for line in lines), pattern


def fields(source: str) -> dict[str, tuple[str, object]]:
    """Help text and default of the prefill_sp fields of the server arguments."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "").startswith("prefill_sp"):
            text = next(e.value for e in node.annotation.slice.elts if isinstance(e, ast.Constant))
            found[node.target.id] = text, node.value.value
    return found


def test_the_help_text_is_the_engines(engine):
    shown = " ".join(OPERATING.read_text().split())
    found = fields(engine["srt/arg_groups/fields/parallel.py"])
    assert set(found) == {"prefill_sp_mode", "prefill_sp_min_tokens"}
    for name, (text, _default) in found.items():
        assert f"--{name.replace('_', '-')}" in shown and " ".join(text.split()) in shown, name


def test_every_switch_is_listed_with_its_default(engine):
    found = fields(engine["srt/arg_groups/fields/parallel.py"])
    switches = {f"--{name.replace('_', '-')}": str(default) for name, (_text, default) in found.items()}
    environment = re.findall(r"(SGLANG_PREFILL_SP_\w+) = Env\w+\((.+?)\)", engine["srt/environ.py"])
    named = {"True": "1", "False": "0"}
    switches |= {name: named.get(default, default.strip('"')) for name, default in environment}
    assert len(switches) >= 6
    for document in (ROOT / "README.md", OPERATING):
        rows = [line for line in document.read_text().splitlines() if line.startswith("| `")]
        for switch, default in switches.items():
            listed = [row for row in rows if row.startswith(f"| `{switch}")]
            assert any(re.search(rf"\b{default}\b", row) for row in listed), f"{document.name}: {switch} {default}"


def test_every_refusal_is_explained(engine):
    """Each reason of the start-up check begins with words that the table of refusals has."""
    hook = ast.parse(engine["srt/arg_groups/prefill_sp_hook.py"])
    (conflicts,) = (
        node.value for node in ast.walk(hook)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "conflicts"
    )  # fmt: skip
    text = OPERATING.read_text()
    section = text[text.index("## What it refuses") : text.index("## Four DGX Sparks")].replace("`", "")
    table = "\n".join(line for line in section.splitlines() if line.startswith("| "))
    reasons = []
    for condition in conflicts.elts:
        constants = [n.value for n in ast.walk(condition.elts[1]) if isinstance(n, ast.Constant)]
        reasons.append(re.split(r" \(|, ", str(constants[0]))[0].strip())
    assert len(reasons) > 15
    for reason in reasons:
        assert reason in table, reason


def test_every_path_that_is_named_exists():
    checked = 0
    for document in DOCUMENTS:
        for path in re.findall(r"\]\(([\w./-]+)\)", document.read_text()):
            checked += 1
            assert (document.parent / path).exists(), f"{document.name}: {path}"
    assert checked > 5


def test_every_figure_is_that_of_a_result():
    """Milliseconds and ratios; a row of figures has to be one of a file in docs/results that the page links to."""
    text = (ROOT / "docs" / "numbers.md").read_text()
    results = "".join((ROOT / "docs" / path).read_text() for path in re.findall(r"\]\((results/[\w./-]+\.md)\)", text))
    checked = 0
    for line in text.splitlines():
        rows, *figures = re.findall(r"\b\d+(?:\.\d+)?\b", line.replace(" of 60", "")) or [""]
        if re.match(r"\| \d+ \|", line):
            checked += 1
            sources = [row for row in results.splitlines() if row.startswith(f"| {rows} |")]
            wanted = [figure for figure in figures if "." in figure]
            assert any(all(f" {figure} " in row for figure in wanted) for row in sources), line
    assert checked > 5


def test_the_workflows_call_what_there_is():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    checked = 0
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = workflow.read_text()
        for target in re.findall(r"(?:run: |\bPATH=\$PATH\" \"HOME=\$HOME\" |^ +)make ([\w-]+)", text, re.M):
            checked += 1
            assert target in targets, f"{workflow.name}: make {target}"
        for script in re.findall(r"\bci/\w+\.py", text):
            checked += 1
            assert os.access(ROOT / script, os.X_OK), f"{workflow.name}: {script}"
    assert checked >= 7
