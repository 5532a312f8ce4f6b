"""`apply.py --lint`: is the series fit to be read, applied and kept?

Owns the rules that need no second upstream. Reports every problem, not the first, and how much it looked at.
"""

import difflib
import json
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
        canonical = refresh.canonical(store, steps)
        python = python_problems(store, steps, canonical)
        problems = []
        for number, (step, again) in enumerate(zip(steps, canonical, strict=True)):
            name = step.patch.name
            earlier = [patch.name for patch in patches[:number]]
            problems += [f"{name}: {p}" for p in header.problems(step.patch, earlier, project.root, store, step.before)]
            if patchfile.render(again) != (project.patches / name).read_bytes():
                problems.append(f"{name}: not in canonical form: `apply.py --refresh`")
            problems += [f"{name}: {p}" for p in python[number]]
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


def python_problems(store: Store, steps: list[Step], patches: list[PatchFile]) -> list[list[str]]:
    """What is wrong with the Python files after each patch, in its order: they compile, and added lines obey upstream's
    ruff rules and format. `patches` are the steps' patches as made from their trees."""
    found: list[list[str]] = [[] for _ in steps]
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch).resolve()
        for number, (step, patch) in enumerate(zip(steps, patches, strict=True)):
            for side, tree, paths in (
                ("before", step.before, [diff.old for diff in patch.files if diff.old]),
                ("after", step.after, [diff.new for diff in patch.files if diff.new]),
            ):
                listing = store.listing(tree)
                place = top / str(number) / side
                store.export_files({path: listing[path] for path in paths if path.endswith(".py")}, place)
        reports = _ruff_reports(top)
        before_format = {path: path.read_bytes() for path in top.glob("*/after/**/*.py")}
        _ruff(top, "format", "--quiet")
        for number, patch in enumerate(patches):
            for diff in patch.files:
                after = top / str(number) / "after" / (diff.new or "")
                if after not in before_format:
                    continue
                added = {line for hunk in diff.hunks for line, _text in hunk.added()}
                if error := _compile_error(before_format[after], diff.new):
                    found[number].append(f"{diff.new}: does not compile: {error}")
                    continue
                before = reports.get(top / str(number) / "before" / (diff.old or ""), [])
                unsorted_before = any(code == "I001" for _start, _end, code, _text in before)
                for start, end, code, text in reports.get(after, []):
                    if added & set(range(start, end + 1)) and not (code == "I001" and unsorted_before):
                        found[number].append(f"{diff.new}, line {start}: {code} {text}")
                for line in sorted(added & _changed_lines(before_format[after], after.read_bytes())):
                    found[number].append(f"{diff.new}, line {line}: not formatted as upstream does (black)")
    return found


def _catalogue_is_current(project: Project, patches: list[PatchFile]) -> bool:
    path = project.root / "PATCHES.md"
    return path.exists() and path.read_text(encoding="utf-8") == catalogue.render(patches)


def _compile_error(source: bytes, path: str) -> str | None:
    try:
        compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return None


def _ruff(directory: Path, *command: str) -> bytes:
    """Run ruff with upstream's rules over a directory. Files that do not compile are left as they are."""
    done = programs.run([sys.executable, "-m", "ruff", *command, "--no-cache", "--config", str(RULES), "."], directory)
    if b"No module named" in done.stdout:
        raise ToolError("ruff is not installed: run `make`")
    return done.stdout


def _ruff_reports(directory: Path) -> dict[Path, list[tuple[int, int, str, str]]]:
    """File -> (first line, last line, rule, message) of what upstream's rules find below a directory."""
    output = _ruff(directory, "check", "--output-format=json", "--exit-zero", "--quiet")
    try:
        report = json.loads(output)
    except ValueError:
        raise ToolError("ruff does not run", details=output.decode(errors="replace").splitlines()[-3:]) from None
    found: dict[Path, list[tuple[int, int, str, str]]] = {}
    for each in report:
        place = (each["location"]["row"], each["end_location"]["row"])
        found.setdefault(Path(each["filename"]), []).append((*place, each["code"] or "", each["message"]))
    return found


def _changed_lines(before: bytes, after: bytes) -> set[int]:
    """Numbers of the lines that were changed or removed, and of those before which something was put in."""
    if before == after:
        return set()
    changes = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    return {n + 1 for tag, start, end, *_ in changes if tag != "equal" for n in range(start, max(end, start + 1))}
