"""One patch as text: DEP-3 header, files, hunks.

Owns the format, both ways: `parse` is strict (a line that belongs to nothing is an error, so a hand-edited hunk count
cannot lose lines; unidiff accepts such lines), `render` writes the canonical form. Everything is bytes:
a CRLF line stays one.

Canonical form: header, an empty line, files sorted by path, three lines of context, hunk ranges without function
names, no timestamps, no `index` lines. That is what `quilt refresh -p ab --no-timestamps --no-index --sort` writes.
What quilt cannot say (modes, empty files, renames) stands in git's extended headers; a patch that needs one has a
`diff --git` line for each of its files, because GNU patch carries an extended header over to a file without.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from patchseries.errors import ToolError
from patchseries.listing import EXECUTABLE, REGULAR

CONTEXT = 3
_DIFF_START = re.compile(rb"diff --git |--- (?:a/|/dev/null)|Index: |diff -|GIT binary patch|Binary files? ")
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SAFE_PATH = re.compile(r"[\w.,=+@%~-]+(/[\w.,=+@%~-]+)*", re.ASCII)
_NO_NEWLINE = b"\\ No newline at end of file"


@dataclass(frozen=True)
class Hunk:
    """`lines` are the body as in the file, first byte ` `, `-`, `+` or `\\`, without the final LF.

    old_start, new_start: line numbers as written (1-based; the line before for a range of length 0).
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[bytes, ...]

    @property
    def header(self) -> bytes:
        def span(start: int, count: int) -> bytes:
            return b"%d" % start if count == 1 else b"%d,%d" % (start, count)

        return b"@@ -%s +%s @@" % (span(self.old_start, self.old_count), span(self.new_start, self.new_count))

    @property
    def old(self) -> list[bytes]:
        """The lines the tree must have (context and removed), without their first byte."""
        return [line[1:] for line in self.lines if line[:1] in b" -"]

    @property
    def new(self) -> list[bytes]:
        """The lines the tree has afterwards (context and added), without their first byte."""
        return [line[1:] for line in self.lines if line[:1] in b" +"]

    def added(self) -> list[tuple[int, bytes]]:
        """(line number in the new file, line) of each added line."""
        found, number = [], self.new_start
        for line in self.lines:
            if line[:1] == b"+":
                found.append((number, line[1:]))
            number += line[:1] in b" +"
        return found

    def removed(self) -> list[bytes]:
        return [line[1:] for line in self.lines if line[:1] == b"-"]

    def changed_lines(self, old: bool) -> list[int]:
        """Line numbers of the removed lines in the old file, or of the added ones in the new file."""
        sign, kept = (b"-", b" -") if old else (b"+", b" +")
        found, number = [], self.old_start if old else self.new_start
        for line in self.lines:
            if line[:1] == sign:
                found.append(number)
            number += line[:1] in kept
        return found


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file. `old` or `new` is None for a file that is created or deleted.

    old_mode, new_mode: git modes where the patch states them, else None (an edit that leaves the mode alone).
    """

    old: str | None
    new: str | None
    old_mode: str | None = None
    new_mode: str | None = None
    hunks: tuple[Hunk, ...] = ()

    @property
    def path(self) -> str:
        return self.new or self.old

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.old, self.new) if path))

    @property
    def renamed(self) -> bool:
        return bool(self.old and self.new and self.old != self.new)

    @property
    def extended(self) -> bool:
        """Whether plain ---/+++ lines cannot say it."""
        if self.renamed or not self.hunks:
            return True
        if self.old and self.new:
            return self.old_mode != self.new_mode
        return (self.new_mode or self.old_mode or REGULAR) != REGULAR


@dataclass(frozen=True)
class PatchFile:
    """A parsed patch. `header` is the text before the first file, without trailing empty lines."""

    name: str
    header: bytes
    files: tuple[FileDiff, ...] = field(default=())

    @property
    def fields(self) -> dict[str, str]:
        """The DEP-3 fields: name -> value, folded lines joined with LF and without their leading space.

        A line ` .` is an empty line, as in Debian's control files.
        """
        fields: dict[str, str] = {}
        name = None
        for line in self.header.decode("utf-8", errors="replace").split("\n"):
            if match := re.fullmatch(r"([A-Za-z][A-Za-z-]*):[ \t]*(.*)", line):
                name = match[1]
                fields[name] = match[2].strip()
            elif name and line[:1] in (" ", "\t") and line.strip():
                text = "" if line.strip() == "." else line.strip()
                fields[name] = f"{fields[name]}\n{text}" if fields[name] else text
            else:
                name = None
        return fields

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path the patch reads or writes, sorted."""
        return tuple(sorted({path for diff in self.files for path in diff.paths}))

    @property
    def hunk_count(self) -> int:
        return sum(len(diff.hunks) for diff in self.files)


def read(path: Path) -> PatchFile:
    """Parse a patch file; ToolError if it is missing or malformed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ToolError(f"{path} is missing") from None
    except OSError as error:
        raise ToolError(f"{path} cannot be read: {error.strerror}") from None
    return parse(path.name, content)


def parse(name: str, content: bytes) -> PatchFile:
    """Parse the bytes of a patch. ToolError gives the patch, the line number and what is wrong."""
    return _Parser(name, content).parse()


def check_path(path: str, where: str) -> str:
    """ToolError for a path that patch, quilt and git would not all read the same way, or that leaves the tree."""
    if not _SAFE_PATH.fullmatch(path) or ".." in path.split("/"):
        raise ToolError(f"{where}: path {path!r} is not supported: plain names only, below the root of the tree")
    return path


class _Parser:
    def __init__(self, name: str, content: bytes):
        self.name = name
        self.lines = content.split(b"\n")
        if self.lines[-1] == b"":
            self.lines.pop()
        self.at = 0

    def fail(self, what: str, line: int | None = None) -> ToolError:
        return ToolError(f"{self.name}, line {(self.at if line is None else line) + 1}: {what}")

    def peek(self) -> bytes | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def parse(self) -> PatchFile:
        while self.peek() is not None and not _DIFF_START.match(self.peek()):
            if _HUNK.match(self.peek()):
                raise self.fail("a hunk without the --- and +++ lines of its file")
            self.at += 1
        header = b"\n".join(self.lines[: self.at]).rstrip(b"\n")
        if b"\r" in header:
            raise self.fail("the header has CR line ends: use LF", 0)
        files = []
        while self.peek() is not None:
            files.append(self.file())
        seen = [path for diff in files for path in diff.paths]
        for path in seen:
            if seen.count(path) > 1:
                raise ToolError(f"{self.name}: {path} occurs twice: make it one file with all its hunks")
        return PatchFile(self.name, header, tuple(files))

    def file(self) -> FileDiff:
        line = self.peek()
        if re.match(rb"GIT binary patch|Binary files? ", line):
            raise self.fail("binary content: a patch series carries text only")
        if not line.startswith((b"diff --git ", b"--- ")):
            shown = line.decode(errors="replace")
            raise self.fail(
                f"{shown!r} belongs to no hunk: a hunk's line count is too small, or text stands between files"
                if line[:1] in (b" ", b"+", b"-", b"")
                else f"{shown!r} is no line of a unified diff: remove it"
            )
        git_paths, facts = None, {}
        if line.startswith(b"diff --git "):
            match = re.fullmatch(rb"diff --git a/(.+) b/(.+)", line)
            if not match:
                raise self.fail("the paths must start with a/ and b/")
            git_paths = (self.path(match[1]), self.path(match[2]))
            self.at += 1
            facts = self.extended()
        old, new = git_paths or (None, None)
        if "new" in facts:
            old = None
        if "deleted" in facts:
            new = None
        if (facts.get("from"), facts.get("to")) != (None, None) and (facts.get("from"), facts.get("to")) != git_paths:
            raise self.fail("`rename from` and `rename to` disagree with the `diff --git` line")
        if git_paths and git_paths[0] != git_paths[1] and "from" not in facts:
            raise self.fail("the two paths differ, and there is no `rename from`")
        hunks: list[Hunk] = []
        if (self.peek() or b"").startswith(b"--- "):
            named = (self.side(b"--- ", b"a/"), self.side(b"+++ ", b"b/"))
            if git_paths and named != (old, new):
                raise self.fail("the --- and +++ lines disagree with the `diff --git` line", self.at - 1)
            old, new = named
            if old is None and new is None or (old and new and old != new and not git_paths):
                raise self.fail("the --- and +++ lines name different files", self.at - 1)
            while (self.peek() or b"").startswith(b"@@"):
                hunks.append(self.hunk())
            if not hunks:
                raise self.fail(f"{new or old} has no hunk")
        elif not facts:
            raise self.fail(f"{new} has neither a hunk nor a mode, rename, new or deleted line")
        old_mode = facts.get("deleted") or facts.get("old mode")
        new_mode = facts.get("new") or facts.get("new mode")
        if old is None:
            new_mode = new_mode or REGULAR
        if new is None:
            old_mode = old_mode or REGULAR
        if (old is None and any(h.old_count for h in hunks)) or (new is None and any(h.new_count for h in hunks)):
            raise self.fail(f"{new or old} is created or deleted, and a hunk keeps or removes lines that cannot exist")
        return FileDiff(old, new, old_mode, new_mode, tuple(hunks))

    def extended(self) -> dict[str, str]:
        facts: dict[str, str] = {}
        patterns = {
            rb"new file mode (\d+)": "new",
            rb"deleted file mode (\d+)": "deleted",
            rb"old mode (\d+)": "old mode",
            rb"new mode (\d+)": "new mode",
            rb"rename from (.+)": "from",
            rb"rename to (.+)": "to",
            rb"(?:dis)?similarity index (\d+)%": "",
            rb"index [0-9a-f]+\.\.[0-9a-f]+(?: \d+)?()": "",
        }
        while self.peek() is not None:
            line = self.peek()
            fact, match = next(((f, m) for p, f in patterns.items() if (m := re.fullmatch(p, line))), (None, None))
            if match is None:
                if line.startswith(b"copy "):
                    raise self.fail("copies are not supported: add the file as a new one")
                break
            value = match[1].decode(errors="surrogateescape")
            if fact in ("from", "to"):
                value = self.path(match[1])
            elif fact and value not in (REGULAR, EXECUTABLE):
                raise self.fail(f"mode {value} is not supported: only {REGULAR} and {EXECUTABLE} are")
            if fact:
                facts[fact] = value
            self.at += 1
        return facts

    def path(self, raw: bytes) -> str:
        return check_path(raw.decode(errors="surrogateescape"), f"{self.name}, line {self.at + 1}")

    def side(self, marker: bytes, prefix: bytes) -> str | None:
        line = self.peek() or b""
        if not line.startswith(marker):
            raise self.fail(f"expected a `{marker.decode().strip()}` line")
        name = line[len(marker) :].split(b"\t")[0]
        if name == b"/dev/null":
            path = None
        elif name.startswith(prefix):
            path = self.path(name[len(prefix) :])
        else:
            raise self.fail(f"the path must start with {prefix.decode()} (quilt: -p ab)")
        self.at += 1
        return path

    def hunk(self) -> Hunk:
        start = self.at
        match = _HUNK.match(self.peek())
        if not match:
            raise self.fail("not a hunk range: @@ -start,count +start,count @@")
        old_start, old_count, new_start, new_count = (int(g) if g is not None else 1 for g in match.groups())
        old_left, new_left = old_count, new_count
        self.at += 1
        lines = []
        while old_left > 0 or new_left > 0:
            line = self.peek()
            if line == b"":
                line = b" "  # an editor stripped the blank of an empty context line
            if line is None or line[:1] not in b" -+\\":
                raise self.fail(f"the hunk says {old_count} old and {new_count} new lines and ends earlier", start)
            old_left -= line[:1] in b" -"
            new_left -= line[:1] in b" +"
            lines.append(line)
            self.at += 1
        if old_left < 0 or new_left < 0:
            raise self.fail(f"the hunk says {old_count} old and {new_count} new lines and has others", start)
        if (self.peek() or b"").startswith(b"\\"):
            lines.append(self.peek())
            self.at += 1
        if not any(line[:1] in b"+-" for line in lines):
            raise self.fail("the hunk changes nothing", start)
        return Hunk(old_start, old_count, new_start, new_count, tuple(lines))


def render(patch: PatchFile) -> bytes:
    """The canonical bytes of a patch."""
    out: list[bytes] = []
    if patch.header:
        out += [patch.header, b""]
    with_git_lines = any(diff.extended for diff in patch.files)
    for diff in sorted(patch.files, key=lambda diff: diff.path):
        old, new = ((path or diff.path).encode(errors="surrogateescape") for path in (diff.old, diff.new))
        if with_git_lines:
            out.append(b"diff --git a/%s b/%s" % (old, new))
            if diff.old is None:
                out.append(b"new file mode " + diff.new_mode.encode())
            elif diff.new is None:
                out.append(b"deleted file mode " + diff.old_mode.encode())
            elif diff.old_mode != diff.new_mode:
                out += [b"old mode " + diff.old_mode.encode(), b"new mode " + diff.new_mode.encode()]
            if diff.renamed:
                out += [b"rename from " + old, b"rename to " + new]
        if diff.hunks:
            out.append(b"--- a/" + old if diff.old else b"--- /dev/null")
            out.append(b"+++ b/" + new if diff.new else b"+++ /dev/null")
            for hunk in diff.hunks:
                out.append(hunk.header)
                out += hunk.lines
    return b"\n".join(out) + b"\n"
