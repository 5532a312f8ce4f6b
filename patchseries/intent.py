"""Is a patch still the same change? What it adds and removes before a rebase and after.

Owns the comparison: every changed line with the function or class it stands in. Where in a file that is does not count,
nor does context. A line that moved to another function is a difference, as is one that is gone or new.
"""

from collections import Counter

from patchseries import symbols
from patchseries.chain import Step
from patchseries.store import Store

_Line = tuple[str, str, str]  # sign, symbol, text


def differences(store: Store, before: Step, after: Step) -> list[str]:
    """How the changed lines of a patch differ, one line each; empty if the patch still says the same."""
    old, new = _lines(store, before), _lines(store, after)
    lost, gained = old - new, new - old
    found = []
    for sign, symbol, text in sorted(lost.elements()):
        other = next((line for line in sorted(gained) if (line[0], line[2]) == (sign, text)), None)
        if other:
            gained -= Counter([other])
            found.append(f"moved   {sign}{text}  (from {symbol or 'module level'} to {other[1] or 'module level'})")
        else:
            found.append(f"lost    {sign}{text}  (in {symbol or 'module level'})")
    found += [
        f"gained  {sign}{text}  (in {symbol or 'module level'})" for sign, symbol, text in sorted(gained.elements())
    ]
    return found


def _lines(store: Store, step: Step) -> Counter[_Line]:
    """The added and removed lines of a patch, and what it does to files: modes, renames, creation and deletion."""
    found: Counter[_Line] = Counter()
    for diff in step.patch.files:
        old, new = (store.file(tree, path) if path else None for tree, path in (
            (step.before, diff.old), (step.after, diff.new)
        ))  # fmt: skip
        if diff.extended or None in (diff.old, diff.new):
            modes = f"{diff.old_mode or ''} -> {diff.new_mode or ''}"
            name = diff.path.rpartition("/")[2]
            kind = "new file" if diff.old is None else "deleted file" if diff.new is None else "file"
            found[("~", "", f"{kind} {name} {modes}")] += 1
        for hunk in diff.hunks:
            for content, sign, side in ((old, "-", True), (new, "+", False)):
                numbers = iter(hunk.changed_lines(side))
                for line in hunk.lines:
                    if line[:1] == sign.encode():
                        found[(sign, _symbol(content, diff.path, next(numbers), line), _shown(line))] += 1
    return found


def _symbol(content: bytes, path: str, number: int, line: bytes) -> str:
    """Where a line stands; an empty line or a comment stands wherever what follows it does, so it is nowhere."""
    code = line[1:].strip()
    return symbols.position(content, number).symbol if path.endswith(".py") and code and code[:1] != b"#" else ""


def _shown(line: bytes) -> str:
    return line[1:].decode(errors="backslashreplace").replace("\r", "\\r")
