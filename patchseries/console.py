"""What a run prints: results on stdout, progress on a terminal, errors on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.table import Table

from patchseries.errors import ToolError


class Console:
    """Prints lines. `quiet` keeps results and errors; progress is shown on a terminal only."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self._out = RichConsole(highlight=False, emoji=False, soft_wrap=True)
        self._err = RichConsole(highlight=False, emoji=False, soft_wrap=True, stderr=True)

    def result(self, line: str) -> None:
        """The outcome of a command; printed even when quiet."""
        self._out.print(line, markup=False)

    def table(self, table: Table) -> None:
        """A table: fitted to a terminal, one line a row elsewhere."""
        if self._out.is_terminal:
            self._out.print(table)
        else:
            RichConsole(width=10_000, emoji=False).print(table)

    def note(self, line: str) -> None:
        """Something worth knowing that is not the outcome."""
        if not self.quiet:
            self._out.print(line, markup=False)

    def error(self, error: ToolError) -> None:
        self._err.print(f"apply.py: {error.message}", markup=False)
        for line in error.details:
            self._err.print(f"  {line}", markup=False)

    @contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Long work: a spinner on a terminal, one plain line elsewhere."""
        if self.quiet:
            yield
        elif self._err.is_terminal:
            with self._err.status(doing):
                yield
        else:
            self._out.print(f"{doing} ...", markup=False)
            yield
