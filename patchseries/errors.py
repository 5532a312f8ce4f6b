"""How a run ends: exit codes, and the one error that ends a run with one clear line."""

OK = 0
DRIFT = 1  # something differs from what is pinned or recorded
CONFLICT = 2  # a patch does not apply
USAGE = 3  # wrong arguments, or something the tool needs is missing


class ToolError(Exception):
    """Ends the run: `message` is what the user reads and says what to do, `code` is the exit status.

    `details` are further lines that name evidence (a list of files, a failed hunk).
    """

    def __init__(self, message: str, code: int = USAGE, details: list[str] | None = None):
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details or []
