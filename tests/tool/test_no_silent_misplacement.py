"""Whatever upstream does to a file, a hunk that goes in goes in where it was meant."""

import ast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchseries import chain, export, placement, programs, symbols, verdict
from patchseries.chain import Step
from patchseries.errors import ToolError
from patchseries.listing import REGULAR
from patchseries.patchfile import FileDiff, PatchFile, render
from patchseries.store import Store

# Few statements, and functions with the same body, so that blocks repeat everywhere: the hard case.
STATEMENTS = ("a = f(x)", "b = g(a)", "x = a")
IN_BODY = ("add", "remove", "change")
AROUND = ("move", "double", "rename", "drop", "swap")
statement = st.sampled_from(STATEMENTS)


@st.composite
def blocks(draw, depth=0):
    """Lines of a function body, nested blocks included."""
    lines = []
    for _ in range(draw(st.integers(2, 4) if depth else st.integers(7, 10))):
        if depth < 2 and draw(st.integers(0, 6)) == 0:
            lines += [draw(st.sampled_from(["if x:", "for y in x:", "while x:"]))]
            lines += ["    " + line for line in draw(blocks(depth=depth + 1))]
        else:
            lines.append(draw(statement))
    return lines


@st.composite
def modules(draw):
    """A module as {function name: body lines}, in order; two bodies for three functions."""
    bodies = [draw(blocks()), draw(blocks())]
    return {name: draw(st.sampled_from(bodies)) for name in ("one", "two", "three")}


def text(module):
    functions = ["\n".join([f"def {name}(x):", *(f"    {line}" for line in body), ""]) for name, body in module.items()]
    return "\n\n".join(functions)


@st.composite
def edited(draw, module, kinds, most):
    """The module after some edits: statements added, removed or changed, functions moved, doubled, renamed, removed, or
    two that swap their bodies."""
    module = {name: list(body) for name, body in module.items()}
    for _ in range(draw(st.integers(1, most))):
        name = draw(st.sampled_from(sorted(module)))
        body = module[name]
        what = draw(st.sampled_from(kinds))
        at = draw(st.integers(0, len(body) - 1))
        indent = body[at][: len(body[at]) - len(body[at].lstrip())]
        if what == "add":
            body.insert(at, indent + draw(statement))
        elif what == "change" and not body[at].endswith(":"):
            body[at] = indent + draw(statement)
        elif what == "remove" and len(body) > 2 and not body[at].endswith(":"):
            del body[at]
        elif what == "move":
            module = {**{other: lines for other, lines in module.items() if other != name}, name: body}
        elif what == "double":
            body += body
        elif what == "rename":
            module = {(name + "x" if other == name else other): lines for other, lines in module.items()}
        elif what == "drop" and len(module) > 2:
            del module[name]
        elif what == "swap":
            other = draw(st.sampled_from(sorted(module)))
            module[name], module[other] = module[other], module[name]
    return module if symbols.parse(text(module).encode()) else draw(st.nothing())


def functions(source):
    return {node.name: ast.dump(node) for node in ast.parse(source).body}


def changed_functions(before, after):
    """The functions that differ between two sources, in code."""
    old, new = functions(before), functions(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def merged(directory, ours, base, theirs):
    """What git makes of the change from base to theirs in ours; None if it conflicts."""
    for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
        (directory / name).write_bytes(content)
    done = programs.run(["git", "merge-file", "-p", "--quiet", "ours", "base", "theirs"], directory)
    return None if done.returncode else done.stdout


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_no_hunk_is_misplaced_in_silence(place, data):
    store, directory = place
    module = data.draw(modules())
    pinned = text(module).encode()
    patched = text(data.draw(edited(module, IN_BODY, 1))).encode()
    upstream = text(data.draw(edited(module, IN_BODY + AROUND, 3))).encode()
    hunks = export.diff(pinned, patched)
    if not hunks or not symbols.parse(pinned):
        return
    patch = PatchFile("p.patch", b"", (FileDiff("f.py", "f.py", None, None, hunks),))
    before, there = (store.import_files("refs/t", [("f.py", REGULAR, content)]) for content in (pinned, upstream))
    step = Step(patch, before, store.import_files("refs/t", [("f.py", REGULAR, patched)]))
    found = verdict.judge(store, step, there, {}, set(), {})
    try:
        applied = store.file(chain.apply_patch(store, there, patch).after, "f.py")
    except ToolError:
        applied = None
    if applied is None:
        assert found.verdict.failed or found.verdict is verdict.Verdict.UPSTREAM
        return
    meant = changed_functions(pinned, patched)
    if found.verdict.failed:
        return
    result = store.file(found.after, "f.py")
    assert result == applied, "what is judged is what GNU patch does"
    assert changed_functions(upstream, result) <= meant, "another function than meant was changed"
    for name in (meant & functions(pinned).keys()) - changed_functions(pinned, upstream):
        assert functions(result).get(name) == functions(patched).get(name), "upstream left it alone: it is the pin's"
    three_way = merged(directory, upstream, pinned, patched)
    assert three_way in (None, result), "git would put it elsewhere, and no doubt was said"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store and a scratch directory for all examples."""
    return Store(tmp_path_factory.mktemp("cache")), tmp_path_factory.mktemp("scratch")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_places_are_those_of_gnu_patch(place, data):
    """`placement.fit` foresees what GNU patch does at fuzz 0, to the byte."""
    line = st.sampled_from([b"a", b"b", b"c", b"dd"])
    old = data.draw(st.lists(line, min_size=3, max_size=30))
    at = data.draw(st.integers(0, len(old) - 1))
    new = [*old[:at], *data.draw(st.lists(line, max_size=2)), *old[at + data.draw(st.integers(0, 2)) :]]
    cut = data.draw(st.integers(0, len(old)))
    there = [*old[:cut], *data.draw(st.lists(line, max_size=4)), *old[cut + data.draw(st.integers(0, 3)) :]]
    ends = [data.draw(st.sampled_from([b"\n", b""])) for _ in range(3)]
    before, after, upstream = (b"\n".join(lines) + end for lines, end in zip((old, new, there), ends, strict=True))
    hunks = export.diff(before, after)
    if not hunks or not upstream.strip() or not after.strip():
        return
    _store, directory = place
    (directory / "f").write_bytes(upstream)
    (directory / "p").write_bytes(render(PatchFile("p.patch", b"", (FileDiff("f", "f", None, None, hunks),))))
    programs.run(["patch", "-p1", "--fuzz=0", "--force", "--no-backup-if-mismatch", "-r-", "--input=p"], directory)
    lines = placement.split(upstream)
    placed = [
        (place, hunk) for place, hunk in zip(placement.fit(hunks, lines), hunks, strict=True) if place is not None
    ]
    assert placement.join(placement.splice(lines, placed)) == (directory / "f").read_bytes()
