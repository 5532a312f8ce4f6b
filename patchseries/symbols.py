"""Functions and classes of Python sources, by qualified name.

Owns the reading of source as an AST: what a file defines, what encloses a line, and whether two definitions mean the
same whatever their comments, docstrings and layout. A name is qualified as Python does it, without `<locals>`:
`function`, `Class.method`, `function.inner`, `CONSTANT`.
"""

import ast
import warnings
from collections.abc import Iterator
from functools import lru_cache

_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@lru_cache(maxsize=2048)
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


def definitions(source: bytes) -> dict[str, list[ast.stmt]]:
    """Every function and class of a file by qualified name, inner ones included."""
    found: dict[str, list[ast.stmt]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _DEFINITION):
                found.setdefault(prefix + child.name, []).append(child)
                visit(child, f"{prefix}{child.name}.")
            elif not isinstance(child, ast.expr):
                visit(child, prefix)

    if module := parse(source):
        visit(module, "")
    return found


def extent(node: ast.stmt) -> range:
    """Line numbers of a definition, decorators included."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return range(first, node.end_lineno + 1)


def enclosing(source: bytes, line: int) -> str:
    """Qualified name of the innermost function or class that holds a line; empty for module level.

    An empty line or a comment after a block belongs to what Python's own parser puts it in, the next outer block.
    """
    around = [(len(name), name) for name, nodes in definitions(source).items() if any(line in extent(n) for n in nodes)]
    return max(around, default=(0, ""))[1]


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


def meaning(nodes: list[ast.stmt]) -> str:
    """A text that is equal for equal code: without comments, docstrings, line numbers and layout."""
    return "\n".join(ast.dump(_WithoutDocstrings().visit(_copy(node))) for node in nodes)


def _copy(node: ast.stmt) -> ast.AST:
    return ast.parse(ast.unparse(node)).body[0] if isinstance(node, ast.stmt) else node


class _WithoutDocstrings(ast.NodeTransformer):
    def _strip(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Module = _strip
