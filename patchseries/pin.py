"""`upstream.toml`: which upstream the series is for, and what the series produced there.

Owns the file: reading it, checking it, and rewriting its `[products]` table. Everything else takes a `Pin`.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patchseries.errors import ToolError

if TYPE_CHECKING:
    import tomlkit


@dataclass(frozen=True)
class Wheel:
    """One release wheel: `python` is its Python tag (`cp311`), `platform` its platform tag."""

    python: str
    platform: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Products:
    """What the series produced on the pin.

    series: sha256 over the series in order (`series.digest`).
    pristine_tree, patched_tree: git tree ids of the wheel import, before and after.
    touched_before, touched_after: sha256 over mode, blob id and path of the files that the series touches
        (`series.touched_digest`). They hold for every source of the release, also where the tree ids cannot:
        a git checkout has files that the wheel lacks, and the wheel has a generated `_version.py`.
    """

    series: str
    pristine_tree: str
    patched_tree: str
    touched_before: str
    touched_after: str


@dataclass(frozen=True)
class Pin:
    """`upstream.toml`. `products` is None until `apply.py --update-pin` has run once.

    commit: pinned instead of wheels; then `release` is the last one before it, and `tag` how it was called.
    """

    path: Path
    package: str
    release: str
    tag: str
    commit: str | None
    git: str
    fork: str
    revision: int
    wheels: tuple[Wheel, ...]
    products: Products | None

    @property
    def version(self) -> str:
        """Version of the patched package: a PEP 440 local version of the release."""
        return f"{self.release}+{self.fork}.{self.revision}"


def load(path: Path) -> Pin:
    """Read `upstream.toml`; ToolError names the key that is missing or wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ToolError(f"{path} is missing: run from a checkout of this repository") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ToolError(f"{path} is not valid TOML: {error}") from None

    def value(table: dict, key: str, where: str, kind: type = str, pattern: str = r"(?s).+"):
        found = table.get(key)
        if type(found) is not kind or (kind is str and not re.fullmatch(pattern, found)):
            raise ToolError(f"{path}: {where} needs `{key}` ({pattern if pattern != '(?s).+' else kind.__name__})")
        return found

    upstream = document.get("upstream", {})
    fork = document.get("fork", {})
    wheels = tuple(
        Wheel(
            python=value(entry, "python", "[[wheel]]", pattern=r"cp3\d+"),
            platform=value(entry, "platform", "[[wheel]]", pattern=r"\w+"),
            file=value(entry, "file", "[[wheel]]", pattern=r"[\w.+-]+\.whl"),
            sha256=value(entry, "sha256", "[[wheel]]", pattern=r"[0-9a-f]{64}"),
        )
        for entry in document.get("wheel", [])
    )
    commit = value(upstream, "commit", "[upstream]", pattern=r"[0-9a-f]{40}") if "commit" in upstream else None
    if bool(wheels) == bool(commit):
        raise ToolError(f"{path}: at least one [[wheel]] is needed, or else `commit` in [upstream]")
    products = None
    if table := document.get("products"):
        products = Products(
            series=value(table, "series", "[products]", pattern=r"[0-9a-f]{64}"),
            pristine_tree=value(table, "pristine_tree", "[products]", pattern=r"[0-9a-f]{40}"),
            patched_tree=value(table, "patched_tree", "[products]", pattern=r"[0-9a-f]{40}"),
            touched_before=value(table, "touched_before", "[products]", pattern=r"[0-9a-f]{64}"),
            touched_after=value(table, "touched_after", "[products]", pattern=r"[0-9a-f]{64}"),
        )
    return Pin(
        path=path,
        package=value(upstream, "package", "[upstream]"),
        release=value(upstream, "release", "[upstream]", pattern=r"\d+(\.\w+)+"),
        tag=value(upstream, "tag", "[upstream]"),
        commit=commit,
        git=value(upstream, "git", "[upstream]"),
        fork=value(fork, "name", "[fork]", pattern=r"[a-z0-9]+"),
        revision=value(fork, "revision", "[fork]", int),
        wheels=wheels,
        products=products,
    )


def write_products(pin: Pin, products: Products) -> bool:
    """Rewrite `[products]`, leaving every other byte of the file; returns whether anything changed."""
    if pin.products == products:
        return False
    import tomlkit

    document = _document(pin)
    table = document.setdefault("products", tomlkit.table())
    for key, digest in asdict(products).items():
        table[key] = digest
    _write(pin, document)
    return True


def move(pin: Pin, release: str, tag: str, wheels: Iterable[Wheel], commit: str | None, git: str, revision: int) -> Pin:
    """Rewrite what the pin is of, without `[products]`, leaving the comments of the file; returns the new pin."""
    import tomlkit

    document = _document(pin)
    document.pop("products", None)
    document.pop("wheel", None)
    document["upstream"].update({"release": release, "tag": tag, "git": git})
    document["upstream"].pop("commit", None)
    if commit:
        document["upstream"]["commit"] = commit
    document["fork"]["revision"] = revision
    tables = tomlkit.aot()
    for wheel in wheels:
        tables.append(tomlkit.item(asdict(wheel)))
    if tables:
        document["wheel"] = tables
    _write(pin, document)
    return load(pin.path)


def _document(pin: Pin) -> "tomlkit.TOMLDocument":
    import tomlkit  # only to write: reading a pin needs the standard library alone

    return tomlkit.parse(pin.path.read_text(encoding="utf-8"))


def _write(pin: Pin, document: "tomlkit.TOMLDocument") -> None:
    import tomlkit

    scratch = pin.path.with_name(pin.path.name + ".new")
    scratch.write_text(tomlkit.dumps(document), encoding="utf-8")
    scratch.replace(pin.path)
