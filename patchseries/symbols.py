"""Functions and classes of Python sources, by qualified name.

Owns the reading of source as an AST: what a file defines, where a line stands, and whether two definitions mean the
same whatever their comments, docstrings and layout. A name is qualified as Python does it, without `<locals>`:
`function`, `Class.method`, `function.inner`, `CONSTANT`.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Position:
    """Where a line stands: qualified name of the innermost function or class (empty at module level), and the blocks
    inside it from the outside in, such as `if`, `else`, `for`, `except`."""

    symbol: str
    blocks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " > ".join([self.symbol or "module level", *self.blocks])


@lru_cache(maxsize=4096)
def parse(source: bytes) -> ast.Module | None:
    """The module, None if it is not Python that this interpreter reads. Do not change the result: it is kept."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # upstream's invalid escapes are upstream's
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def find(source: bytes, qualified: str) -> list[ast.stmt]:
    """The statements that define a name; several where it is defined in the branches of an `if` or a `try`."""
    module = parse(source)
    body, nodes = module.body if module else [], []
    for part in qualified.split("."):
        nodes = [node for node in flat(body) if part in bound(node)]
        body = [stmt for node in nodes for stmt in getattr(node, "body", [])]
    return nodes


def defines(source: bytes, qualified: str) -> bool:
    """Whether Python source defines a name such as `function`, `Class`, `Class.method` or `CONSTANT`."""
    return bool(find(source, qualified))


def is_function(source: bytes, qualified: str) -> bool:
    """Whether a name is that of a function or method."""
    return any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in find(source, qualified))


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the `if`, `try` and `with` blocks in it."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            yield from flat([*inner, *(stmt for handler in getattr(node, "handlers", []) for stmt in handler.body)])


def bound(node: ast.stmt) -> list[str]:
    """The names that a definition or an assignment binds."""
    if isinstance(node, _DEFINITION):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def extent(node: ast.stmt) -> range:
    """Line numbers of a statement, decorators included."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return range(first, node.end_lineno + 1)


def position(source: bytes, line: int) -> Position:
    """Where a line (from 1) stands. An empty line or a comment behind a block belongs to the next outer block, as it
    does for Python's parser; in a source that is no Python everything is module level."""
    module = parse(source)
    symbol, blocks, body = "", (), module.body if module else []
    while node := next((node for node in body if line in extent(node)), None):
        if isinstance(node, _DEFINITION):
            symbol, blocks, body = f"{symbol}.{node.name}".lstrip("."), (), node.body
            continue
        label, body = _block(node, line)
        blocks += (label,) if label else ()
    return Position(symbol, blocks)


def _block(node: ast.stmt, line: int) -> tuple[str, list[ast.stmt]]:
    """The block of a compound statement that holds a line: its label and its statements. A chain of `elif` is flat."""
    if isinstance(node, (ast.Try, ast.Match)) or hasattr(ast, "TryStar") and isinstance(node, ast.TryStar):
        kind = {"ExceptHandler": "except", "match_case": "case"}
        for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            last = part.body[-1].end_lineno
            first = part.lineno if isinstance(part, ast.ExceptHandler) else part.pattern.lineno
            if first <= line <= last:
                return kind[type(part).__name__], part.body
    label = type(node).__name__.removeprefix("Async").lower().replace("trystar", "try")
    for field, other in (("body", label), ("orelse", "else"), ("finalbody", "finally")):
        statements = getattr(node, field, None)
        if isinstance(statements, list) and statements:
            if line <= statements[-1].end_lineno:
                chained = field == "orelse" and isinstance(node, ast.If) and isinstance(statements[0], ast.If)
                if chained and len(statements) == 1 and statements[0].col_offset == node.col_offset:
                    inner, body = _block(statements[0], line)
                    return {"if": "elif"}.get(inner, inner), body
                return other, statements
    return "", []


def meaning(nodes: list[ast.stmt]) -> str:
    """A text that is equal for equal code, whatever its comments, docstrings, line numbers and layout."""
    return "\n".join(map(_text, nodes))


def same_module(one: bytes, other: bytes) -> bool:
    """Whether two files are equal code; files that are no Python are compared by their bytes."""
    modules = [parse(one), parse(other)]
    return one == other if None in modules else _text(modules[0]) == _text(modules[1])


def code_lines(nodes: list[ast.stmt]) -> list[str]:
    """The same as lines of code in one layout, for a comparison line by line."""
    module = ast.parse("\n".join(map(ast.unparse, nodes)))
    for node in ast.walk(module):
        if isinstance(node, (*_DEFINITION, ast.Module)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(module).splitlines()


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = dict(ast.iter_fields(value))
    if isinstance(value, (*_DEFINITION, ast.Module)) and ast.get_docstring(value, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    return f"{type(value).__name__}({','.join(f'{name}={_text(each)}' for name, each in fields.items())})"
