"""Upstream's sources as a git tree, wherever they come from.

Owns the way from a source (release wheel, git repository, directory, archive) to an `Upstream`: a tree in the local
`Store` with upstream's own layout, `python/<package>/...` and nothing else.
"""

import hashlib
import os
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import git

from patchseries import wheel
from patchseries.console import Console
from patchseries.errors import ToolError
from patchseries.listing import NATIVE, SUBMODULE, SYMLINK, Entry, scan
from patchseries.pin import Pin, Wheel
from patchseries.store import Repository, Store

_RELEASE = re.compile(r"v?(\d+\.\d+(\.\w+)*)")


@dataclass(frozen=True)
class Upstream:
    """A tree and where it came from.

    kind: `wheel`, `git`, `directory` or `archive`. label: for people, such as `wheel 0.5.23` or `v0.5.23 of URL`.
    commit: only git knows one; a wheel has no commit id.
    repository: the git directory that has the commit's history, for kind `git`.
    file, sha256: the wheel's, for kind `wheel`. location: of the repository, for kind `git`.
    """

    tree: str
    kind: str
    label: str
    commit: str | None = None
    repository: Path | None = None
    file: Path | None = None
    sha256: str | None = None
    location: str | None = None

    def describe(self) -> str:
        return f"{self.label} ({f'commit {self.commit}' if self.commit else 'no commit id'}, tree {self.tree[:12]})"


def pinned(pin: Pin, store: Store, console: Console) -> Upstream:
    """The pinned release wheel: imported before, in the cache, or downloaded. Or the pinned commit.

    The wheel for the running interpreter is preferred. Release wheels have been seen that lost exec bits; then the
    sources are those of the first wheel in the pin. ToolError if the contents differ.
    """
    if pin.commit:
        return from_git(pin, store, console, pin.git, pin.commit)
    reference = pin.wheels[0]
    chosen = wheel.matching(pin) or reference
    tree = _wheel_tree(pin, store, console, chosen)
    if pin.products and tree != pin.products.pristine_tree and chosen != reference:
        other = _wheel_tree(pin, store, console, reference)
        _same_contents(store, console, {reference.file: other, chosen.file: tree})
        chosen, tree = reference, other
    return Upstream(tree, "wheel", f"wheel {pin.package} {pin.release} ({chosen.python})", sha256=chosen.sha256)


def compare_wheels(pin: Pin, store: Store, console: Console) -> tuple[Upstream, int]:
    """The first pinned wheel, compared with every other that the cache has; also how many were compared.

    ToolError if the contents of their sources differ.
    """
    if pin.commit:
        return pinned(pin, store, console), 0
    reference = pin.wheels[0]
    chosen = [reference, *(each for each in cached_wheels(pin, store) if each != reference)]
    trees = {each.file: _wheel_tree(pin, store, console, each) for each in chosen}
    _same_contents(store, console, trees)
    found = Upstream(trees[reference.file], "wheel", f"wheel {pin.package} {pin.release} ({reference.python})")
    return found, len(trees)


def cached_wheels(pin: Pin, store: Store) -> list[Wheel]:
    """The pinned wheels that need no network: imported, or in the cache."""
    return [each for each in pin.wheels if store.lookup(_wheel_ref(each.sha256)) or wheel.cached(each, store.cache)]


def _wheel_tree(pin: Pin, store: Store, console: Console, chosen: Wheel) -> str:
    tree = store.lookup(_wheel_ref(chosen.sha256))
    if tree is None:
        with console.step(f"Fetching {chosen.file}"):
            file = wheel.fetch(pin, chosen, store.cache)
        with console.step(f"Importing {chosen.file}"):
            tree = _import_wheel(pin, store, file, chosen.sha256)
    return tree


def _same_contents(store: Store, console: Console, trees: dict[str, str]) -> None:
    """Compare each tree with the first: ToolError if contents differ, a note if only modes do."""
    (first, tree), *others = trees.items()
    wanted = store.listing(tree)
    for file, other in others:
        found = store.listing(other)
        blobs = [p for p in wanted.keys() | found.keys() if _blob(wanted.get(p)) != _blob(found.get(p))]
        if blobs:
            raise ToolError(
                f"the sources of {file} and {first} differ in {len(blobs)} files: they cannot be one pin",
                details=sorted(blobs)[:20],
            )
        if modes := [path for path in wanted if wanted[path] != found[path]]:
            console.note(f"{file} has other file modes than {first} ({len(modes)} files): the latter's are used")


def _blob(entry: Entry | None) -> str | None:
    return entry.blob if entry else None


def resolve(pin: Pin, store: Store, console: Console, source: str | None = None, ref: str | None = None) -> Upstream:
    """The upstream that `--source` and `--ref` name.

    Neither: the pinned wheel. A ref alone: a release (`0.5.22`, `v0.5.22`) as its wheel, anything else from the pinned
    git URL. A git URL or clone: its commit, tag or branch, by default the pinned tag. A directory or archive: as it is.
    """
    if source is None:
        if ref is None:
            return pinned(pin, store, console)
        if match := _RELEASE.fullmatch(ref):
            return release(pin, store, console, match[1])
        return from_git(pin, store, console, pin.git, ref)
    path = Path(source).expanduser()
    if "://" in source or re.match(r"[\w.-]+@[\w.-]+:", source) or _is_clone(path):
        return from_git(pin, store, console, source if not _is_clone(path) else str(path.resolve()), ref or pin.tag)
    if ref is not None:
        raise ToolError(f"--ref {ref} needs a git repository, and {source} is none")
    if path.is_dir():
        return from_directory(pin, store, path)
    if path.is_file():
        return from_archive(pin, store, path)
    raise ToolError(f"--source {source}: no such file, directory or git URL")


def release(pin: Pin, store: Store, console: Console, version: str) -> Upstream:
    """The wheel of any release for the running interpreter, by version; only the pinned one has a sha256 to meet."""
    if version == pin.release:
        return pinned(pin, store, console)
    like = wheel.matching(pin) or next(iter(pin.wheels), None) or wheel.here()
    label = f"wheel {pin.package} {version} ({like.python})"
    found = list((store.cache / "wheels").glob(f"{pin.package}-{version}-{like.python}-*{like.platform}.whl"))
    if not found:
        with console.step(f"Fetching {pin.package} {version}"):
            found = [wheel.download(pin.package, version, like.python, like.platform, store.cache)]
    digest = wheel.sha256(found[0])
    tree = store.lookup(_wheel_ref(digest)) or _import_wheel(pin, store, found[0], digest)
    return Upstream(tree, "wheel", label, file=found[0], sha256=digest)


def wheels(pin: Pin, store: Store, console: Console, target: Upstream) -> list[Wheel]:
    """The wheels of another release for every Python and platform that the pin has; `target` was imported from one.

    All are kept in the cache. One that the index does not have is left out with a note.
    """
    first = wheel.describe(wheel.keep(target.file, store.cache))
    found = [first]
    for like in pin.wheels:
        if (like.python, like.platform) == (first.python, first.platform):
            continue
        version = wheel.release_of(target.file)
        present = list((store.cache / "wheels").glob(f"{pin.package}-{version}-{like.python}-*{like.platform}.whl"))
        try:
            with console.step(f"Fetching {pin.package} {version} for {like.python} on {like.platform}"):
                file = present[0] if present else None
                file = file or wheel.download(pin.package, version, like.python, like.platform, store.cache)
            found.append(wheel.describe(file))
        except ToolError as error:
            console.note(f"not pinned: {error.message}")
    return found


def from_git(pin: Pin, store: Store, console: Console, location: str, ref: str) -> Upstream:
    """`ref` (commit, tag or branch) of a git URL or of a local clone, which is only read."""
    if ref.startswith("-"):
        raise ToolError(f"{ref!r} is not a commit, tag or branch")
    local = Path(location)
    if _is_clone(local):
        repository = Repository(Path(git.Repo(local).common_dir))
        commit = repository.commit(ref)
    else:
        with console.step(f"Fetching {ref} of {location}"):
            repository, commit = _fetch(pin, store, location, ref)
    if commit is None:
        raise ToolError(f"{location} has no commit, tag or branch {ref!r}")
    name = f"refs/upstream/git/{commit}"
    tree = store.lookup(name)
    if tree is None:
        with console.step(f"Importing {ref}"):
            files = _git_files(pin, repository, commit)
            if not files:
                raise ToolError(f"{ref} of {location} has no python/{pin.package}: not a {pin.package} repository")
            tree = store.import_files(name, files)
    return Upstream(tree, "git", f"{ref} of {location}", commit, repository.git_directory, location=location)


def from_directory(pin: Pin, store: Store, path: Path, kind: str = "directory") -> Upstream:
    """A directory that has `python/<package>`, `<package>`, or is the package itself."""
    candidates = [path / "python" / pin.package, path / pin.package, path]
    root = next((c for c in candidates if c.name == pin.package and (c / "__init__.py").is_file()), None)
    if root is None:
        raise ToolError(f"{path} has neither python/{pin.package} nor {pin.package} with an __init__.py")

    def files() -> Iterator[tuple[str, str, bytes]]:
        for name, entry in sorted(scan(root, skip=_no_source).items()):
            file = root / name
            content = os.fsencode(os.readlink(file)) if entry.mode == SYMLINK else file.read_bytes()
            yield f"python/{pin.package}/{name}", entry.mode, content

    tree = store.import_files(f"refs/upstream/{kind}/{hashlib.sha256(str(path).encode()).hexdigest()}", files())
    return Upstream(tree, kind, f"{kind} {path}")


def from_archive(pin: Pin, store: Store, path: Path) -> Upstream:
    """A wheel, or a tar or zip archive of upstream's repository or package (one top directory is allowed)."""
    if path.suffix == ".whl":
        for known in pin.wheels:
            if known.file == path.name:
                wheel.verify(path, known)
        digest = wheel.sha256(path)
        tree = store.lookup(_wheel_ref(digest)) or _import_wheel(pin, store, path, digest)
        return Upstream(tree, "wheel", f"wheel {path.name}", file=path, sha256=digest)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch)
        try:
            if zipfile.is_zipfile(path):
                _unzip(path, target)
            else:
                with tarfile.open(path) as archive:
                    archive.extractall(target, filter="tar")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise ToolError(f"{path} is not a readable archive: {error}") from None
        inside = list(target.iterdir())
        root = inside[0] if len(inside) == 1 and inside[0].is_dir() and inside[0].name != "python" else target
        if root.name == pin.package and (root / "__init__.py").is_file():
            root = target
        found = from_directory(pin, store, root, "archive")
    return Upstream(found.tree, "archive", f"archive {path}")


def _wheel_ref(digest: str) -> str:
    return f"refs/upstream/wheel/{digest}"


def _import_wheel(pin: Pin, store: Store, file: Path, digest: str) -> str:
    files = list(wheel.sources(file, pin.package))
    if not files:
        raise ToolError(f"{file} has no {pin.package}/: not a wheel of {pin.package}")
    return store.import_files(_wheel_ref(digest), files)


def _no_source(path: str) -> bool:
    return bool(NATIVE.search(path)) or path.endswith((".pyc", ".pyo")) or path.split("/")[-1] == ".git"


def _is_clone(path: Path) -> bool:
    return (path / ".git").exists() or (path / "HEAD").is_file() and (path / "objects").is_dir()


def _git_files(pin: Pin, repository: Repository, commit: str) -> list[tuple[str, str, bytes]]:
    inside = f"python/{pin.package}/"
    chosen = {
        path: entry
        for path, entry in repository.listing(commit).items()
        if path.startswith(inside) and not _no_source(path) and entry.mode != SUBMODULE
    }
    if missing := repository.missing_blobs(f"{commit}:{inside}") if chosen else []:
        raise ToolError(
            f"{repository.git_directory} is a partial clone that lacks {len(missing)} blobs of commit {commit[:12]}: "
            "check that commit out there, which fetches them, or name the URL with --source"
        )
    contents = repository.read(entry.blob for entry in chosen.values())
    return [(path, entry.mode, contents[entry.blob]) for path, entry in chosen.items()]


def _fetch(pin: Pin, store: Store, url: str, ref: str) -> tuple[Repository, str | None]:
    """One commit of a remote repository without its blobs, then the package's blobs, in a clone kept in the cache."""
    path = store.cache / "clones" / hashlib.sha256(url.encode()).hexdigest()[:16]
    with store.lock():
        repository = Repository.create(path)
        settings = {"url": url, "promisor": "true", "partialclonefilter": "blob:none"}
        with git.Repo(path).config_writer() as config:
            for key, value in settings.items():
                config.set_value('remote "upstream"', key, value)
        mark = f"refs/fetched/{hashlib.sha256(ref.encode()).hexdigest()[:16]}"
        repository.run_network(
            "fetch", "--quiet", "--no-tags", "--depth=1", "--filter=blob:none", "upstream", f"+{ref}:{mark}"
        )
        commit = repository.commit(mark)
        if commit is None:
            return repository, None
        missing = repository.missing_blobs(f"{commit}:python/{pin.package}")
        if missing:
            repository.run_network(
                "-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head",
                "--filter=blob:none", "--stdin", "upstream", stdin="\n".join(missing).encode() + b"\n",
            )  # fmt: skip
    return repository, commit


def _unzip(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            written = Path(archive.extract(info, target))
            if not info.is_dir() and info.external_attr >> 16 & 0o100:
                written.chmod(0o755)
