"""Where upstream moved things between two trees.

Owns the search: files that git sees as renamed, and functions or classes that are now defined in another file.
"""

from functools import cached_property

from patchseries import symbols
from patchseries.store import Store


class Moves:
    """From the tree `before` to the tree `after`."""

    def __init__(self, store: Store, before: str, after: str):
        self.store, self.before, self.after = store, before, after

    @cached_property
    def renamed(self) -> dict[str, str]:
        """Old path -> new path, of files that are half alike or more."""
        return {old: new for new, old in self.store.renames(self.before, self.after).items()}

    def of_symbol(self, path: str, name: str) -> list[str]:
        """Files, other than `path`, that define a function or class which they did not define before, best first."""
        old = self.store.listing(self.before)
        found = []
        for other, content in self._changed.items():
            if other != path and _mentions(content, name) and symbols.defines(content, name):
                was = self.store.file(self.before, other) if other in old else b""
                if not (_mentions(was, name) and symbols.defines(was, name)):
                    found.append(other)
        source = self.store.file(self.before, path) or b""
        meant = symbols.meaning(symbols.find(source, name))
        same = [p for p in found if symbols.meaning(symbols.find(self._changed[p], name)) == meant]
        rank = {self.renamed.get(path): 0, **dict.fromkeys(same, 1)}
        return sorted(found, key=lambda each: (rank.get(each, 2), each))

    @cached_property
    def _changed(self) -> dict[str, bytes]:
        """The Python files that are new or different."""
        old, new = self.store.listing(self.before), self.store.listing(self.after)
        paths = [path for path in new if path.endswith(".py") and old.get(path) != new[path]]
        contents = self.store.read(new[path].blob for path in paths)
        return {path: contents[new[path].blob] for path in paths}


def _mentions(content: bytes, name: str) -> bool:
    """Whether a text can define a name at all: cheaper than to parse it."""
    *outer, last = name.encode().split(b".")
    return all(b"class " + each in content for each in outer) and (
        b"def " + last in content or b"class " + last in content
    )
