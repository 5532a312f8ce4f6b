"""`PATCHES.md`: the series for readers, generated from the headers."""

from pathlib import Path

from patchseries import header
from patchseries.patchfile import PatchFile


def render(patches: list[PatchFile]) -> str:
    """The text of PATCHES.md."""
    out = [
        "# The patches",
        "",
        "In the order of `series`. Generated from the headers by `apply.py --refresh`: edit those, not this file.",
    ]
    for number, patch in enumerate(patches, 1):
        fields = patch.fields
        summary, _, reason = fields.get("Description", "").partition("\n")
        added = sum(len(hunk.added()) for diff in patch.files for hunk in diff.hunks)
        removed = sum(len(hunk.removed()) for diff in patch.files for hunk in diff.hunks)
        out += ["", f"## {number}. [{patch.name}](patches/{patch.name})", "", summary, ""]
        if reason.strip():
            out += [reason.strip(), ""]
        out += [
            f"- Size: {len(patch.files)} files, +{added} -{removed}",
            f"- Forwarded: {_line(fields.get('Forwarded', ''))}",
            f"- Depends on: {_list(header.entries(patch, 'Depends'))}",
            f"- Drop when: {_line(fields.get('Drop-When', ''))}",
            f"- Proven by: {_list(header.entries(patch, 'Verify'))}",
            f"- Watches: {_list(header.entries(patch, 'Watches'))}",
        ]
    return "\n".join(out) + "\n"


def write(path: Path, patches: list[PatchFile]) -> bool:
    """Write PATCHES.md; returns whether it changed."""
    text = render(patches)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


def _line(text: str) -> str:
    return " ".join(text.split())


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"
