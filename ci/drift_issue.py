#!/usr/bin/env python3
"""One open issue says how upstream moved away from the series.

    ci/drift_issue.py REPORT.json      (what `apply.py --check --json` printed)

Opens the issue at the first drift, comments once on each new one, keeps its text that of the latest report, and closes
it when everything is clean again. Line numbers and commits change every night and are no news: a patch, hunk or
watched symbol with another verdict is. Talks to GitHub through `gh`. Exit status: 0 done; 3 no report, or gh failed.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from patchseries import report  # noqa: E402
from patchseries.errors import OK, USAGE, ToolError  # noqa: E402

LABEL = "upstream-drift"
TITLE = "The series no longer fits upstream"
LONGEST = 60_000
"""Characters of a report in an issue: GitHub takes 65,536 for the whole text."""


def drifts(found: dict) -> list[str]:
    """What a report has against the series, a line for each patch, hunk and symbol; the same drift, the same line."""
    lines = []
    for each in found["upstreams"]:
        where = "main" if each["kind"] == "git" else each["ref"]
        for patch in each["patches"]:
            bad = [hunk for hunk in patch["hunks"] if hunk["verdict"] != "clean"]
            lines += [f"{where}: {patch['name']}: {h['path']} hunk {h['number']} {h['verdict']}" for h in bad]
            if patch["verdict"] != "clean" and not bad:
                lines.append(f"{where}: {patch['name']}: {patch['verdict']}")
        lines += [f"{where}: {s['symbol']} {s['verdict']}" for s in each["symbols"] if s["verdict"] != "same"]
    return sorted(set(lines))


def body(found: dict, lines: list[str]) -> str:
    """The issue's text: the report, and the drifts in a comment that only this script reads."""
    text = report.as_markdown(found)
    if len(text) > LONGEST:
        text = text[:LONGEST].rsplit("\n", 1)[0] + "\n\nThe rest is in the report of the nightly job.\n"
    return f"{text}\n<!-- drifts: {json.dumps(lines)} -->\n"


def known(text: str) -> list[str]:
    match = re.search(r"<!-- drifts: (\[.*\]) -->", text)
    return json.loads(match[1]) if match else []


def gh(*arguments: str, text: str = "") -> str:
    try:
        done = subprocess.run(["gh", *arguments], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ToolError("gh is not installed: install the GitHub command line") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["no message"]
        raise ToolError(f"gh {' '.join(arguments[:2])} failed: {reason[-1]}")
    return done.stdout


def tell(found: dict) -> str:
    """Bring the issue up to date; returns what was done."""
    lines = drifts(found)
    listed = gh("issue", "list", f"--label={LABEL}", "--state=open", "--limit=1", "--json=number,body")
    issue = next(iter(json.loads(listed)), None)
    number = str(issue["number"]) if issue else ""
    if not lines:
        if not issue or found["verdict"] != "clean":
            return "no drift"
        gh("issue", "close", number, "--comment=Everything is clean again.")
        return f"closed #{number}"
    if not issue:
        gh("label", "create", LABEL, "--force", "--description=Reported by the nightly check")
        made = gh("issue", "create", f"--title={TITLE}", f"--label={LABEL}", "--body-file=-", text=body(found, lines))
        return f"opened {made.strip()}"
    gh("issue", "edit", number, "--body-file=-", text=body(found, lines))
    before = known(issue["body"])
    if new := [line for line in lines if line not in before]:
        comment = "New since the last report:\n\n" + "".join(f"- {line}\n" for line in new)
        gh("issue", "comment", number, "--body-file=-", text=comment[:LONGEST])
        return f"commented on #{number}: {len(new)} new"
    return f"nothing new for #{number}"


def main(argv: list[str]) -> int:
    if len(argv) != 1 or argv[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return USAGE
    try:
        print(tell(json.loads(Path(argv[0]).read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"drift_issue.py: {argv[0]} is no report of --check ({error}): run ci/nightly_check.py", file=sys.stderr)
        return USAGE
    except ToolError as error:
        print(f"drift_issue.py: {error.message}", file=sys.stderr)
        return error.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
