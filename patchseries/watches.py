"""`Watches:`: the upstream symbols that a patch relies on without editing them.

Owns the rule for what must be watched. The lines that a patch adds use an upstream symbol if they load its name outside
an annotation: a name imported from an upstream module, one that the edited upstream file itself defines, an attribute
of such a class or module, or a method called on `self`. It counts if it is a function, a class, a class attribute or a
CONSTANT at the pin. One header of the series must name it, or its class, or its file; it need not be named if the
series edits it (what it edits is compared by `--check` anyway). Out of reach is what only a run can tell: methods of
objects whose class the text does not name, `getattr`, star imports.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from patchseries import header, symbols
from patchseries.chain import Step
from patchseries.store import Store

_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPE = (*_DEFINED, ast.Lambda)


@dataclass(frozen=True)
class Use:
    """An upstream symbol, `path::name`, and where a patch first uses it: `file` and `line` after the patch."""

    symbol: str
    patch: str
    file: str
    line: int


def covers(watched: str, symbol: str) -> bool:
    """Whether watching one symbol watches the other: the same, a method's class, or the whole file."""
    path, _, name = watched.partition("::")
    other_path, _, other = symbol.partition("::")
    return path == other_path and (not name or name == other or other.startswith(name + "."))


def missing(store: Store, steps: list[Step]) -> list[Use]:
    """What the series uses and no header watches, by patch in order; each symbol at the first patch that uses it."""
    watched = {entry for step in steps for entry in header.entries(step.patch, "Watches")}
    edited = {symbol for step in steps for symbol in edits(store, step)}
    found: dict[str, Use] = {}
    for step in steps:
        for use in uses(store, steps[0].before, step):
            if use.symbol not in edited and not any(covers(each, use.symbol) for each in watched):
                found.setdefault(use.symbol, use)
    return list(found.values())


def suggestion(step: Step, lacking: list[Use]) -> str:
    """The complete `Watches:` field of a patch with what it lacks, to paste into its header."""
    wanted = sorted({*header.entries(step.patch, "Watches"), *(use.symbol for use in lacking)})
    return "\n ".join(["Watches:", *wanted])


def edits(store: Store, step: Step) -> set[str]:
    """The functions and classes that a patch changes lines of, `path::name`, with the classes around them."""
    found = set()
    for diff in step.patch.files:
        sides = [(step.before, diff.old, True), (step.after, diff.new, False)]
        for tree, path, old in sides:
            source = store.file(tree, path) if path and path.endswith(".py") else None
            for hunk in diff.hunks if source else ():
                for number in hunk.changed_lines(old):
                    name = symbols.position(source, number).symbol
                    while name:
                        found.add(f"{diff.old or path}::{name}")
                        name = name.rpartition(".")[0]
    return found


def uses(store: Store, pristine: str, step: Step) -> list[Use]:
    """The upstream symbols that the lines added by one patch use, in order of first use."""
    found: dict[str, Use] = {}
    for diff in step.patch.files:
        if not diff.new or not diff.new.endswith(".py"):
            continue
        added = {number for hunk in diff.hunks for number, _line in hunk.added()}
        module = symbols.parse(store.file(step.after, diff.new))
        resolver = _Resolver(store, pristine, diff.old or diff.new)
        for chain, line, scopes in _loads(module, []) if module else ():
            if line in added and (symbol := resolver.symbol(chain, scopes)):
                found.setdefault(symbol, Use(symbol, step.patch.name, diff.new, line))
    return list(found.values())


def _loads(node: ast.AST, scopes: list[ast.AST]) -> Iterator[tuple[list[str], int, list[ast.AST]]]:
    """(name and attributes, line, scopes from the outside in) of every load outside annotations."""
    if isinstance(node, (ast.Attribute, ast.Name)):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            if isinstance(inner.ctx, ast.Load):
                yield [inner.id, *reversed(chain)], inner.lineno, scopes
            return
    if isinstance(node, (ast.Module, *_SCOPE)):
        inside = [*scopes, node]
    else:
        inside = scopes
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        outside = name in ("decorator_list", "bases", "keywords") and isinstance(node, _DEFINED)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _loads(child, scopes if outside else inside)


class _Resolver:
    """From a name in a patched file to the symbol that upstream defines at the pin."""

    def __init__(self, store: Store, pristine: str, path: str):
        self.store, self.tree, self.path = store, pristine, path
        self.files = store.listing(pristine)
        self.root = path.split("/")[0] + "/"

    def symbol(self, chain: list[str], scopes: list[ast.AST]) -> str | None:
        """`path::name` of what a chain such as `module.function` or `Class.MEMBER` loads; None if not upstream's."""
        first, rest = chain[0], chain[1:]
        if first in ("self", "cls") and rest:
            owner = next((scope.name for scope in reversed(scopes) if isinstance(scope, ast.ClassDef)), None)
            found = self.defined(self.path, f"{owner}.{rest[0]}") if owner else None
            return f"{self.path}::{owner}.{rest[0]}" if found and isinstance(found[-1], _DEFINED) else None
        for scope in reversed(scopes):
            if isinstance(scope, ast.ClassDef):
                continue
            if imported := _imports(scope).get(first):
                return self.imported(imported, rest)
            if not isinstance(scope, ast.Module) and first in _locals(scope):
                return None
        return self.member(self.path, first, rest)

    def imported(self, target: tuple[int, str, str | None], rest: list[str]) -> str | None:
        place = self.resolve(*target, self.path)
        while place and place[1] is None and rest:  # a module: its attribute is a module again, or a symbol
            place, rest = self.resolve(0, place[0], rest[0], self.path), rest[1:]
        return self.member(place[0], place[1], rest) if place and place[1] else None

    def resolve(
        self, level: int, module: str, name: str | None, path: str, depth: int = 0
    ) -> tuple[str, str | None] | None:
        """(file, name) of an imported name, through re-exports; (dotted module, None) of a module; None if unknown."""
        if level:
            package = path.removeprefix(self.root).split("/")[:-level]
            module = ".".join([*package, *filter(None, [module])])
        if name is None:
            return (module, None) if self.file(module) else None
        if self.file(f"{module}.{name}"):
            return f"{module}.{name}", None
        file = self.file(module)
        if file is None or depth > 8:
            return None
        if self.defined(file, name):
            return file, name
        reexport = _imports(symbols.parse(self.source(file)) or ast.Module([], [])).get(name)
        return self.resolve(*reexport, file, depth + 1) if reexport else None

    def member(self, path: str, name: str, rest: list[str]) -> str | None:
        nodes = self.defined(path, name)
        if not nodes:
            return None
        owner = name
        if isinstance(nodes[-1], ast.Assign) and isinstance(nodes[-1].value, ast.Call):  # `envs = Envs()`
            owner = nodes[-1].value.func.id if isinstance(nodes[-1].value.func, ast.Name) else name
        if rest and self.defined(path, f"{owner}.{rest[0]}"):
            return f"{path}::{owner}.{rest[0]}"
        return f"{path}::{name}" if isinstance(nodes[-1], _DEFINED) or name.isupper() else None

    def file(self, module: str) -> str | None:
        base = self.root + module.replace(".", "/")
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self.files), None)

    def source(self, path: str) -> bytes:
        return self.store.file(self.tree, path) or b""

    def defined(self, path: str, name: str) -> list[ast.stmt]:
        return symbols.find(self.source(path), name) if path in self.files else []


def _imports(scope: ast.AST) -> dict[str, tuple[int, str, str | None]]:
    """What the imports of one scope bind: name -> (level, module, name in it or None)."""
    found: dict[str, tuple[int, str, str | None]] = {}
    for node in symbols.flat(scope.body if isinstance(getattr(scope, "body", None), list) else []):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = (node.level, node.module or "", alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                found[alias.asname or first] = (0, alias.name if alias.asname else first, None)
    return found


def _locals(scope: ast.AST) -> set[str]:
    """The parameters and assigned names of a function."""
    arguments = scope.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    stored = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {each.arg for each in parameters if each}
