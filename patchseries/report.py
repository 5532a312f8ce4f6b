"""What a check found, for people and for programs.

Owns three forms of the same facts: a table for a terminal, Markdown to paste into an issue, and JSON whose shape is
`report.schema.json`. The JSON is the facts; the other two are made from it.
"""

import json
from collections import Counter
from itertools import groupby

from rich.table import Table
from rich.text import Text

from patchseries.check import Baseline, Report, SymbolVerdict
from patchseries.console import Console
from patchseries.errors import ToolError
from patchseries.verdict import HunkVerdict, PatchVerdict

SCHEMA = "report.schema.json"
_STYLES = {
    **dict.fromkeys(("clean", "same"), "green"),
    **dict.fromkeys(("offset", "already upstream", "drift", "changed", "moved"), "yellow"),
}


def publish(base: Baseline, reports: list[Report], console: Console, form: str | None) -> None:
    """Print the reports as a table, `json` or `markdown`. ToolError with the worst exit status unless all is clean."""
    found = data(base, reports)
    if form == "json":
        console.result(json.dumps(found, indent=1, ensure_ascii=False))
    elif form == "markdown":
        console.result(as_markdown(found).rstrip())
    else:
        show(found, console)
    if code := max(report.code for report in reports):
        outcome = ", ".join(f"{report.ref} {report.verdict}" for report in reports)
        raise ToolError(f"check: {outcome}", code, [f"{r.ref}: {r.error}" for r in reports if r.error])


def data(base: Baseline, reports: list[Report]) -> dict:
    """The report as plain data; every patch, hunk and symbol has a `verdict`."""
    patches = [step.patch for step in base.steps]
    return {
        "schema": SCHEMA,
        "pin": {"release": base.pin.release, "label": base.upstream.label, "tree": base.tree},
        "series": {
            "sha256": base.digest,
            "patches": len(patches),
            "hunks": sum(patch.hunk_count for patch in patches),
            "files": sum(len(patch.files) for patch in patches),
        },
        "verdict": max(reports, key=lambda report: report.code).verdict,
        "upstreams": [_upstream(report) for report in reports],
    }


def _upstream(report: Report) -> dict:
    found = report.upstream
    return {
        "ref": report.ref,
        "verdict": report.verdict,
        "error": report.error,
        "kind": found.kind if found else None,
        "label": found.label if found else None,
        "commit": found.commit if found else None,
        "sha256": found.sha256 if found else None,
        "tree": found.tree if found else None,
        "no_history": report.history,
        "patches": [_patch(patch) for patch in report.patches],
        "symbols": [_symbol(symbol) for symbol in report.symbols],
    }


def _patch(patch: PatchVerdict) -> dict:
    return {
        "name": patch.name,
        "verdict": str(patch.verdict),
        "cause": patch.cause,
        "blocked_by": list(patch.blocked_by),
        "hunks": [_hunk(hunk) for hunk in patch.hunks],
    }


def _hunk(hunk: HunkVerdict) -> dict:
    return {
        "path": hunk.path,
        "number": hunk.number,
        "verdict": str(hunk.verdict),
        "symbol": hunk.symbol,
        "stated_line": hunk.stated,
        "line": hunk.line,
        "cause": hunk.cause,
        "blocked_by": list(hunk.blocked_by),
    }


def _symbol(symbol: SymbolVerdict) -> dict:
    return {
        "symbol": symbol.symbol,
        "verdict": str(symbol.verdict),
        "relation": symbol.relation,
        "patches": list(symbol.patches),
        "cause": symbol.cause,
    }


# For people: `found` is what `data` returns.


def show(found: dict, console: Console) -> None:
    """Print the report: a matrix if there are several upstreams, then each of them."""
    upstreams = found["upstreams"]
    if len(upstreams) > 1:
        table = Table("patch", *(each["ref"] for each in upstreams), box=None, pad_edge=False)
        for row in _matrix(upstreams):
            table.add_row(row[0], *map(_styled, row[1:]))
        console.table(table)
    for each in upstreams:
        console.result("")
        console.result(f"{each['ref']}: {each['verdict']} ({_source(each)})")
        if each["error"]:
            continue
        table = Table("patch", "verdict", "hunks", "cause", box=None, pad_edge=False)
        for patch in each["patches"]:
            table.add_row(patch["name"], _styled(patch["verdict"]), _counts(patch["hunks"]), _patch_cause(patch))
        console.table(table)
        if rows := [(patch["name"], *row) for patch in each["patches"] for row in _hunk_rows(patch)]:
            table = Table("patch", "hunk", "verdict", "in", "cause", box=None, pad_edge=False)
            for name, where, verdict, symbol, cause in rows:
                table.add_row(name, where, _styled(verdict), symbol, cause)
            console.result("")
            console.table(table)
        if differing := _differing(each):
            table = Table("symbol", "verdict", "behind", "cause", box=None, pad_edge=False)
            for symbol in differing:
                table.add_row(symbol["symbol"], _styled(symbol["verdict"]), _behind(symbol), symbol["cause"])
            console.result("")
            console.table(table)
        console.result("")
        console.result(_totals(each))


def as_markdown(found: dict) -> str:
    """A report that stands for itself in an issue."""
    series, upstreams = found["series"], found["upstreams"]
    out = [
        f"# The series against {', '.join(each['ref'] for each in upstreams)}: {found['verdict']}",
        "",
        f"{series['patches']} patches, {series['hunks']} hunks, {series['files']} files "
        f"(sha256 `{series['sha256'][:12]}`), made for {found['pin']['release']}. "
        "Verdicts are of the series as a whole: each patch on top of those before it that fit, at fuzz 0.",
        "",
        *_rows(["patch", *(each["ref"] for each in upstreams)], _matrix(upstreams)),
    ]
    for each in upstreams:
        out += ["", f"## {each['ref']}: {each['verdict']}", "", f"{_source(each)}."]
        if each["error"]:
            continue
        if each["commit"] is None:
            out[-1] += " The commits that changed lines are not named: there is no history."
        elif each["no_history"]:
            out[-1] += f" The commits that changed lines are not named: {each['no_history']}."
        causes = [[p["name"], p["verdict"], _counts(p["hunks"]), _patch_cause(p)] for p in each["patches"]]
        out += ["", *_rows(["patch", "verdict", "hunks", "cause"], causes)]
        if any(_hunk_rows(patch) for patch in each["patches"]):
            out += ["", "### Hunks that are not clean"]
            for patch in each["patches"]:
                if rows := _hunk_rows(patch):
                    out += ["", f"`{patch['name']}`", ""]
                    out += [
                        f"- {_as_code(where)}, in {f'`{symbol}`' if symbol else 'no function'}: **{verdict}**"
                        + (f". {cause}" if cause else "")
                        for where, verdict, symbol, cause in rows
                    ]
        if differing := _differing(each):
            out += ["", "### Symbols that are not the same", ""]
            rows = [[f"`{s['symbol']}`", s["verdict"], _behind(s), s["cause"]] for s in differing]
            out += _rows(["symbol", "verdict", "behind", "cause"], rows)
        out += ["", _totals(each)]
    return "\n".join(out) + "\n"


def _rows(head: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def _matrix(upstreams: list[dict]) -> list[list[str]]:
    """A row for each patch, then one for the symbols."""
    judged = next((each["patches"] for each in upstreams if each["patches"]), [])
    rows = [
        [patch["name"], *(each["patches"][n]["verdict"] if each["patches"] else "error" for each in upstreams)]
        for n, patch in enumerate(judged)
    ]
    symbols = [
        "error" if each["error"] else f"{len(_differing(each))} of {len(each['symbols'])} differ" for each in upstreams
    ]
    return [*rows, ["symbols behind it", *symbols]]


def _source(each: dict) -> str:
    if each["error"]:
        return each["error"]
    known = f"commit {each['commit']}" if each["commit"] else "no commit id"
    digest = f", sha256 {each['sha256'][:12]}" if each["sha256"] else ""
    return f"{each['label']}, {known}{digest}, tree {each['tree'][:12]}"


def _counts(hunks: list[dict]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(hunk["verdict"] for hunk in hunks).items())


def _patch_cause(patch: dict) -> str:
    blocked = f"blocked by {', '.join(patch['blocked_by'])}" if patch["blocked_by"] else ""
    return blocked if patch["verdict"] == "blocked" else "; ".join(filter(None, [patch["cause"], blocked]))


def _hunk_rows(patch: dict) -> list[tuple[str, str, str, str]]:
    """(where, verdict, symbol, cause) of the hunks that are not clean; neighbours with equal fate are one row."""
    rows = []
    fate = lambda hunk: (hunk["path"], hunk["verdict"], hunk["symbol"], hunk["cause"])  # noqa: E731
    for (path, verdict, symbol, cause), group in groupby(patch["hunks"], fate):
        hunks = list(group)
        if verdict == "clean":
            continue
        numbers = ", ".join(str(hunk["number"]) for hunk in hunks)
        line = f"line {hunks[0]['stated_line']}"
        if hunks[0]["line"] not in (None, hunks[0]["stated_line"]):
            line += f" -> {hunks[0]['line']}"
        hunk = f" hunk {numbers}, {line}" if numbers != "0" else ""
        rows.append((f"{path}{hunk}", verdict, symbol, cause))
    return rows


def _differing(each: dict) -> list[dict]:
    return [symbol for symbol in each["symbols"] if symbol["verdict"] != "same"]


def _behind(symbol: dict) -> str:
    verb = {"watches": "watched by", "edits": "edited by"}[symbol["relation"]]
    return f"{verb} {', '.join(symbol['patches'])}"


def _totals(each: dict) -> str:
    hunks = [hunk for patch in each["patches"] for hunk in patch["hunks"]]
    patches = Counter(patch["verdict"] for patch in each["patches"])
    symbols = Counter(symbol["verdict"] for symbol in each["symbols"])
    return "; ".join(
        f"{sum(counter.values())} {what}: {', '.join(f'{count} {verdict}' for verdict, count in counter.items())}"
        for what, counter in (
            ("patches", patches), ("hunks", Counter(hunk["verdict"] for hunk in hunks)), ("symbols", symbols)
        )
        if counter
    )  # fmt: skip


def _as_code(where: str) -> str:
    path, hunk, rest = where.partition(" hunk ")
    return f"`{path}`{hunk}{rest}"


def _styled(verdict: str) -> Text:
    return Text(verdict, style=_STYLES.get(verdict, "red" if not verdict[:1].isdigit() else ""))
