"""`RETIRED.md`: the patches that upstream made superfluous.

Owns the log: which patch left the series at which upstream, what it was for, and why it could go. It only grows.
"""

import hashlib
from pathlib import Path

from patchseries import patchfile
from patchseries.patchfile import PatchFile

_HEAD = """# Retired patches

Patches that left the series because upstream has what they did. Written by `apply.py --rebase`.
"""


def entry(patch: PatchFile, upstream: str, proof: str) -> str:
    """The section of one patch."""
    fields = patch.fields
    summary, _, reason = fields.get("Description", "").partition("\n")
    added = sum(len(hunk.added()) for diff in patch.files for hunk in diff.hunks)
    removed = sum(len(hunk.removed()) for diff in patch.files for hunk in diff.hunks)
    lines = [
        f"## {patch.name}, at {upstream}",
        "",
        summary or "No description.",
        *(["", reason.strip()] if reason.strip() else []),
        "",
        f"- Proof: {proof}",
        f"- Drop when: {' '.join(fields.get('Drop-When', 'not said').split())}",
        f"- Was: {len(patch.files)} files, +{added} -{removed}, "
        f"sha256 `{hashlib.sha256(patchfile.render(patch)).hexdigest()[:12]}`",
    ]
    return "\n".join(lines) + "\n"


def appended(path: Path, entries: list[str]) -> str:
    """The text of the log with more sections."""
    text = path.read_text(encoding="utf-8") if path.exists() else _HEAD
    return "\n".join([text, *entries]) if entries else text
