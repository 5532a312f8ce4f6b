"""Git trees: one local repository for every upstream.

Owns the repository under the cache directory. The rest of the package sees tree ids and listings. Nothing outside
reaches in: no other repository, no user configuration, no attributes file, no hook.
"""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # a missing git is reported where it is first needed
import git  # noqa: E402

from patchseries.errors import ToolError
from patchseries.listing import EXECUTABLE, SYMLINK, Entry, Listing

# The environment may say how to reach a server; it may not say which repository or configuration is meant.
_NETWORK_VARIABLES = ("GIT_SSH", "GIT_SSL", "GIT_ASKPASS", "GIT_PROXY", "GIT_HTTP", "GIT_TERMINAL_PROMPT", "GIT_PYTHON")
_NO_CONFIGURATION = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
_NO_LAZY_FETCH = {"GIT_NO_LAZY_FETCH": "1"}  # a clone that is read must not grow

_SETTINGS = ("-c", "core.autocrlf=false", "-c", f"core.attributesFile={os.devnull}", "-c", "core.quotePath=false")
_NO_GIT = "git is not installed: install it (Debian: apt-get install git)"


def _isolate() -> None:
    """Forget what the environment says about another repository; git hooks and shells set such variables."""
    for name in list(os.environ):
        if name.startswith("GIT_") and not name.startswith(_NETWORK_VARIABLES):
            del os.environ[name]


_IDENTITY = ("-c", "user.name=patchseries", "-c", "user.email=patchseries@localhost")


class Repository:
    """A git repository that is read: its trees, and its blobs by id."""

    def __init__(self, git_directory: Path):
        _isolate()
        self.git_directory = git_directory
        self._listings: dict[str, Listing] = {}
        self._files: dict[str, bytes] = {}

    @classmethod
    def create(cls, path: Path) -> "Repository":
        """Open the bare repository at `path`, making an empty one if there is none."""
        _isolate()
        if not (path / "info").is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            git.Git(path.parent).init(
                "--quiet", "--bare", "--object-format=sha1", "--template=", str(path), env=_NO_CONFIGURATION
            )
            (path / "info").mkdir(exist_ok=True)
        return cls(path)

    def _run(
        self,
        *command: str,
        stdin: bytes | Iterable[bytes] = b"",
        index: str | None = None,
        accepted: tuple[int, ...] = (0,),
    ) -> bytes:
        """Standard output of a git command. ToolError if its exit status is none of the accepted ones."""
        environment = {**_NO_CONFIGURATION, **_NO_LAZY_FETCH, "GIT_DIR": str(self.git_directory)}
        if index:
            environment["GIT_INDEX_FILE"] = index
        with tempfile.TemporaryFile() as source:
            for chunk in [stdin] if isinstance(stdin, bytes) else stdin:
                source.write(chunk)
            source.seek(0)
            try:
                status, output, errors = git.Git().execute(
                    ["git", *_SETTINGS, *command],
                    istream=source,
                    env=environment,
                    with_extended_output=True,
                    with_exceptions=False,
                    stdout_as_string=False,
                    strip_newline_in_stdout=False,
                )
            except git.GitCommandNotFound:
                raise ToolError(_NO_GIT) from None
        if status not in accepted:
            lines = str(errors).strip().splitlines() or ["no message"]
            raise ToolError(f"git {command[0]} failed in {self.git_directory}: {lines[-1].strip()}")
        return output

    def lookup(self, ref: str) -> str | None:
        """Tree id of a ref or revision, None if the repository does not have it."""
        try:
            return self._run("rev-parse", "--verify", "--quiet", "--end-of-options", ref + "^{tree}").decode().strip()
        except ToolError:
            return None

    def listing(self, tree: str) -> Listing:
        """All files of a tree. Do not change the result: it is kept."""
        if tree in self._listings:
            return self._listings[tree]
        listing: Listing = {}
        for record in self._run("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]:
            meta, path = record.split(b"\t", 1)
            mode, _kind, blob = meta.decode().split(" ")
            listing[os.fsdecode(path)] = Entry(mode, blob)
        self._listings[tree] = listing
        return listing

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Contents of blobs by id, in one git process."""
        wanted = sorted(set(blobs))
        output = self._run("cat-file", "--batch", stdin="".join(f"{b}\n" for b in wanted).encode())
        contents, at = {}, 0
        for blob in wanted:
            end = output.index(b"\n", at)
            header = output[at:end].split(b" ")
            if header[-1] == b"missing":
                raise ToolError(f"the local repository {self.git_directory} lacks blob {blob}: remove it and run again")
            size = int(header[2])
            contents[blob] = output[end + 1 : end + 1 + size]
            at = end + 1 + size + 1
        return contents

    def file(self, tree: str, path: str) -> bytes | None:
        """Content of one file of a tree, None if the tree has no such file. It is kept: sources are read often."""
        entry = self.listing(tree).get(path)
        if entry is None:
            return None
        if entry.blob not in self._files:
            self._files.update(self.read([entry.blob]))
        return self._files[entry.blob]

    def renames(self, before: str, after: str) -> dict[str, str]:
        """Files renamed between two trees, new path -> old path (git's own detection, half of the content alike)."""
        output = self._run(
            "diff-tree", "-r", "-z", "--raw", "--no-abbrev", "-M50%", "--no-rename-empty", "-l0",
            "--no-ext-diff", "--diff-filter=R", before, after,
        )  # fmt: skip
        fields = [os.fsdecode(field) for field in output.split(b"\0")[:-1]]
        return {fields[i + 2]: fields[i + 1] for i in range(0, len(fields), 3)}

    def commit(self, revision: str) -> str | None:
        """Commit id of a commit, tag or branch (a remote's branch too), None if the repository does not have it."""
        for name in (revision, f"origin/{revision}"):
            try:
                found = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}")
                return found.decode().strip()
            except ToolError:
                continue
        return None

    def is_shallow(self) -> bool:
        return self._run("rev-parse", "--is-shallow-repository").strip() == b"true"

    def merge_base(self, one: str, other: str) -> str | None:
        """A commit that both descend from, None if the repository has none."""
        try:
            return self._run("merge-base", one, other).decode().strip()
        except ToolError:
            return None

    def log(self, start: str, end: str, paths: list[str]) -> list[tuple[str, str, str | None]]:
        """(commit, subject, blob of the changed file or None if it went) of commits in start..end that changed any of
        the paths, oldest first. With several paths the blob is that of one of them."""
        output = self._run(
            "log", "--reverse", "--topo-order", "--raw", "--no-abbrev", "--no-renames", "--format=%x01%H%x02%s",
            f"{start}..{end}", "--", *paths,
        )  # fmt: skip
        found = []
        for record in output.decode(errors="replace").split("\x01")[1:]:
            title, *raw = record.strip().split("\n")
            commit, subject = title.split("\x02", 1)
            blobs = [line.split(" ")[3] for line in raw if line.startswith(":")]
            found.append((commit, subject, blobs[0] if blobs and set(blobs[0]) != {"0"} else None))
        return found

    def missing_blobs(self, revision: str) -> list[str]:
        """Ids of the blobs below a tree that a partial clone does not have yet."""
        objects = self._run("rev-list", "--objects", "--missing=print", "--no-object-names", "--no-walk", revision)
        return [line[1:] for line in objects.decode().split() if line.startswith("?")]

    def run_network(self, *command: str, stdin: bytes = b"") -> None:
        """A git command that talks to a server: the user's own configuration (proxy, credentials) holds here."""
        try:
            subprocess.run(
                ["git", f"--git-dir={self.git_directory}", *command],
                check=True, capture_output=True, input=stdin, env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise ToolError(f"git {command[0]} failed: {lines[-1]}") from None


@dataclass(frozen=True)
class Merge:
    """A three-way merge of trees. conflicts: the paths that a person must resolve; in `tree` they have git's conflict
    markers, with the lines of the base too. messages: what git says about them."""

    tree: str
    conflicts: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


class Store(Repository):
    """The local repository in which every upstream becomes a tree; the one place that the tool writes objects to."""

    def __init__(self, cache: Path):
        """Open or create the repository below `cache`; ToolError if git is missing or the place is not writable."""
        self.cache = cache = cache.absolute()
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with self.lock():
                created = Repository.create(cache / "upstream.git")
        except OSError as error:
            raise ToolError(f"the cache {cache} cannot be used ({error.strerror}): name another with --cache") from None
        except git.GitCommandNotFound:
            raise ToolError(_NO_GIT) from None
        super().__init__(created.git_directory)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One writer of the cache at a time; others wait."""
        with open(self.cache / "lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def import_files(self, ref: str, files: Iterable[tuple[str, str, bytes]]) -> str:
        """Store (path, mode, content) triples as the tree of a commit at `ref`; returns the tree id."""

        def stream() -> Iterator[bytes]:
            yield b"commit %s\ncommitter upstream <> 0 +0000\ndata 0\ndeleteall\n" % ref.encode()
            for path, mode, content in files:
                name = os.fsencode(path)
                if name.startswith(b'"') or b"\n" in name or b"\0" in name:
                    raise ToolError(f"{path!r} cannot be imported: the name has a quote or a line break")
                yield b"M %s inline %s\ndata %d\n" % (mode.encode(), name, len(content))
                yield content
                yield b"\n"

        with self.lock():
            self._run("fast-import", "--quiet", "--force", "--date-format=raw", stdin=stream())
        return self.lookup(ref)

    def write_blobs(self, files: list[Path]) -> list[str]:
        """Store files as they are (no filter); returns their blob ids in order."""
        names = b"".join(os.fsencode(path.absolute()) + b"\n" for path in files)
        return self._run("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=names).decode().split()

    def write_tree(self, base: str, changes: dict[str, Entry | None]) -> str:
        """The tree `base` with some files set, or removed where the entry is None; returns its id."""
        if not changes:
            return base
        records = b"".join(
            b"%s %s\t%s\0"
            % ((entry.mode if entry else "0").encode(), (entry.blob if entry else "0" * 40).encode(), os.fsencode(path))
            for path, entry in changes.items()
        )
        with tempfile.TemporaryDirectory() as scratch:
            index = str(Path(scratch, "index"))
            self._run("read-tree", base, index=index)
            self._run("update-index", "-z", "--index-info", stdin=records, index=index)
            tree = self._run("write-tree", index=index).decode().strip()
        if tree not in self._listings:
            changed = {**self.listing(base), **changes}
            self._listings[tree] = {path: entry for path, entry in changed.items() if entry}
        return tree

    def merge(self, base: str, ours: str, theirs: str, label: str) -> Merge:
        """Merge what leads from `base` to `theirs` into `ours`, following renames. `label` names theirs in markers."""
        names = {"base": base, "upstream": ours, label: theirs}
        with self.lock():
            commits: dict[str, str] = {}
            for name, tree in names.items():
                parent = ["-p", commits["base"]] if commits else []
                commit = self._run(*_IDENTITY, "commit-tree", tree, *parent, "-m", name).decode().strip()
                self._run("update-ref", f"refs/heads/{name}", commit)
                commits[name] = commit
            output = self._run("merge-tree", "--write-tree", "-z", "upstream", label, accepted=(0, 1))
        tree, *fields = os.fsdecode(output).split("\0")
        if "" not in fields:
            return Merge(tree)
        stages: dict[str, dict[str, Entry]] = {}
        for field in fields[: fields.index("")]:
            meta, path = field.split("\t", 1)
            mode, blob, stage = meta.split(" ")
            stages.setdefault(path, {})[stage] = Entry(mode, blob)
        messages = [text.strip() for text in fields[fields.index("") + 1 :] if text.startswith("CONFLICT")]
        messages = [text for text in messages if ": " in text]
        changes = {path: self._with_base(found, label) for path, found in stages.items() if len(found) == 3}
        return Merge(self.write_tree(tree, changes), tuple(sorted(stages)), tuple(messages))

    def _with_base(self, stages: dict[str, Entry], label: str) -> Entry:
        """A conflicting text with the lines of all three sides."""
        contents = self.read(entry.blob for entry in stages.values())
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch, name) for name in ("upstream", "base", "patch")]
            for file, stage in zip(files, "213", strict=True):
                file.write_bytes(contents[stages[stage].blob])
            labels = [part for name in ("upstream", "the pin", label) for part in ("-L", name)]
            merged = self._run("merge-file", "--diff3", "-p", *labels, *map(str, files), accepted=tuple(range(128)))
            files[0].write_bytes(merged)
            (blob,) = self.write_blobs(files[:1])
        return Entry(stages["2"].mode, blob)

    def export(self, tree: str, directory: Path) -> None:
        """Write every file of a tree below `directory`, which exists."""
        with tempfile.TemporaryDirectory() as scratch:
            index = str(Path(scratch, "index"))
            self._run("read-tree", tree, index=index)
            self._run(
                f"--work-tree={directory.absolute()}", "checkout-index", "--all", "--force",
                f"--prefix={directory.absolute()}/", index=index,
            )  # fmt: skip

    def export_files(self, listing: Listing, directory: Path) -> None:
        """Write some files below `directory`, modes included."""
        contents = self.read(entry.blob for entry in listing.values())
        for path, entry in listing.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if entry.mode == SYMLINK:
                target.symlink_to(os.fsdecode(contents[entry.blob]))
            else:
                target.write_bytes(contents[entry.blob])
                target.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)
