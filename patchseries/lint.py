"""`apply.py --lint`: is the series fit to be read, applied and kept?

Owns the rules that need no second upstream. Reports every problem, not the first, and how much it looked at.
"""

import difflib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from patchseries import build, catalogue, chain, header, patchfile, pin, programs, refresh, series, upstream, watches
from patchseries.build import Project
from patchseries.chain import Step
from patchseries.console import Console
from patchseries.errors import DRIFT, ToolError
from patchseries.patchfile import PatchFile
from patchseries.store import Store

RULES = Path(__file__).with_name("upstream-ruff.toml")


def lint(project: Project, store: Store, console: Console) -> None:
    """Print every problem and raise ToolError (code 1) if there is one, or if nothing was checked."""
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    found = upstream.pinned(pinned, store, console)
    with console.step(f"Checking {len(patches)} patches"):
        steps = chain.apply_series(store, found.tree, patches)
        problems = []
        for number, (step, again) in enumerate(zip(steps, refresh.canonical(store, steps), strict=True)):
            name = step.patch.name
            earlier = [patch.name for patch in patches[:number]]
            problems += [f"{name}: {p}" for p in header.problems(step.patch, earlier, project.root, store, step.before)]
            if patchfile.render(again) != (project.patches / name).read_bytes():
                problems.append(f"{name}: not in canonical form: `apply.py --refresh`")
            problems += [f"{name}: {p}" for p in python_problems(store, step, again)]
        unwatched = watches.missing(store, steps)
        problems += [
            f"{use.patch}: uses {use.symbol} ({use.file}, line {use.line}), and no header watches it"
            for use in unwatched
        ]
        if not _catalogue_is_current(project, patches):
            problems.append("PATCHES.md is not up to date: `apply.py --refresh`")
        if pinned.products != build.products(store, project, steps):
            problems.append("upstream.toml is not that of this series: `apply.py --update-pin`")
    hunks, files = sum(p.hunk_count for p in patches), sum(len(p.files) for p in patches)
    checked = f"{len(patches)} patches, {hunks} hunks, {files} files"
    if not files:
        raise ToolError(f"lint checked nothing ({checked})")
    for problem in problems:
        console.result(problem)
    for step in steps:
        if lacking := [use for use in unwatched if use.patch == step.patch.name]:
            console.note(f"{step.patch.name}: with the missing symbols its header says")
            console.note(watches.suggestion(step, lacking))
    if problems:
        raise ToolError(f"lint: {len(problems)} problems in {checked}", DRIFT)
    console.result(f"lint: no problem in {checked}")


def python_problems(store: Store, step: Step, patch: PatchFile) -> list[str]:
    """What is wrong with the Python files after a patch: they compile, and added lines obey upstream's ruff rules."""
    listing = store.listing(step.after)
    changed = [diff for diff in patch.files if diff.new and diff.new.endswith(".py")]
    contents = {diff.new: store.file(step.after, diff.new) for diff in changed}
    found = []
    for path, source in contents.items():
        try:
            compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            found.append(f"{path}: does not compile: {error}")
    if found or not changed:
        return found
    with tempfile.TemporaryDirectory() as after, tempfile.TemporaryDirectory() as before:
        old = {d.old: store.listing(step.before)[d.old] for d in changed if d.old}
        store.export_files({path: listing[path] for path in contents}, Path(after))
        store.export_files(old, Path(before))
        unsorted_before = {path for path, _start, _end, code, _text in _ruff(Path(before)) if code == "I001"}
        for diff in changed:
            added = {number for hunk in diff.hunks for number, _line in hunk.added()}
            for path, start, end, code, text in _ruff(Path(after)):
                if path == diff.new and added & set(range(start, end + 1)):
                    if code != "I001" or diff.old not in unsorted_before:
                        found.append(f"{path}, line {start}: {code} {text}")
            for number in sorted(added & _unformatted(contents[diff.new], diff.new)):
                found.append(f"{diff.new}, line {number}: not formatted as upstream does (black)")
    return found


def _catalogue_is_current(project: Project, patches: list[PatchFile]) -> bool:
    path = project.root / "PATCHES.md"
    return path.exists() and path.read_text(encoding="utf-8") == catalogue.render(patches)


def _ruff(directory: Path) -> list[tuple[str, int, int, str, str]]:
    """(path, first line, last line, rule, message) of what upstream's ruff rules find in a directory."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(RULES)]
    done = programs.run([*command, "--output-format=json", "--exit-zero", "--quiet", "."], directory)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise ToolError("ruff does not run: run `make`", details=_tail(done.stdout)) from None
    return [
        (
            str(Path(each["filename"]).relative_to(directory.resolve())),
            each["location"]["row"],
            each["end_location"]["row"],
            each["code"] or "",
            each["message"],
        )
        for each in report
    ]


def _unformatted(source: bytes, path: str) -> set[int]:
    """Line numbers that upstream's formatter would change or remove."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--no-cache",
        "--config",
        str(RULES),
        f"--stdin-filename={path}",
        "-",
    ]
    done = subprocess.run(command, input=source, capture_output=True, env=programs.environment())
    if done.returncode:
        raise ToolError("ruff does not run: run `make`", details=_tail(done.stderr))
    before, after = source.splitlines(), done.stdout.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False) if before != after else None
    changes = matcher.get_opcodes() if matcher else []
    return {n + 1 for tag, start, end, *_ in changes if tag != "equal" for n in range(start, max(end, start + 1))}


def _tail(output: bytes) -> list[str]:
    return output.decode(errors="replace").strip().splitlines()[-3:]
