"""The header of a patch: what it must tell and whether that is so.

Owns the fields: DEP-3's own, and the four with which the series is kept alive (`Depends`, `Drop-When`, `Verify`,
`Watches`). A field that has nothing to say is `none`.
"""

import re
from datetime import date
from pathlib import Path

from patchseries import symbols
from patchseries.patchfile import PatchFile
from patchseries.store import Store

REQUIRED = ("Description", "Origin", "Author", "Forwarded", "Last-Update", "Depends", "Drop-When", "Verify", "Watches")
OPTIONAL = ("Bug", "Bug-Upstream", "Applied-Upstream", "Reviewed-By", "Acked-By", "License")


def entries(patch: PatchFile, field: str) -> list[str]:
    """A field that is a list: one entry a line, or comma and blank between. Empty if it is `none` or missing."""
    found = [entry.strip() for entry in re.split(r"\n|, ", patch.fields.get(field, "")) if entry.strip()]
    return [] if found == ["none"] else found


def problems(patch: PatchFile, earlier: list[str], root: Path, store: Store, tree: str) -> list[str]:
    """What is wrong with a header, one line each.

    earlier: names of the patches before it. root: the checkout, for the tests that `Verify` names. tree: the tree that
    the patch is applied to, for the symbols that `Watches` names.
    """
    fields = patch.fields
    found = [f"the header has no {name}" for name in REQUIRED if not fields.get(name, "").strip()]
    found += [f"the header has an unknown field {name}" for name in fields if name not in REQUIRED + OPTIONAL]
    if (updated := fields.get("Last-Update")) and not _is_date(updated):
        found.append(f"Last-Update is {updated!r}, not a date like 2026-01-31")
    for name in entries(patch, "Depends"):
        if name not in earlier:
            found.append(f"Depends names {name}, which is no earlier patch of the series")
    for node in entries(patch, "Verify"):
        if problem := _test_problem(node, root):
            found.append(f"Verify names {node}: {problem}")
    if not entries(patch, "Verify") and fields.get("Verify"):
        found.append("Verify must name the test that fails without the patch")
    for symbol in entries(patch, "Watches"):
        path, _, name = symbol.partition("::")
        source = store.file(tree, path)
        if source is None:
            found.append(f"Watches names {symbol}: the tree has no such file")
        elif path in patch.paths and not name:
            found.append(f"Watches names {symbol}: the patch edits it")
        elif name and not symbols.defines(source, name):
            found.append(f"Watches names {symbol}: the file does not define it")
    return found


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _test_problem(node: str, root: Path) -> str | None:
    path, _, name = node.partition("::")
    if not re.fullmatch(r"tests/[\w/]+\.py", path) or not name:
        return "not a test like tests/engine/test_x.py::test_y"
    try:
        source = (root / path).read_bytes()
    except OSError:
        return "no such file"
    return None if symbols.defines(source, name.split("[")[0].replace("::", ".")) else "the file has no such test"
