"""`apply.py --doctor`: does this interpreter run the patched package?"""

from patchseries import delivery, installation
from patchseries.build import Project
from patchseries.console import Console
from patchseries.store import Store


def doctor(project: Project, store: Store, console: Console) -> None:
    """Print what the interpreter imports and every problem; ToolError (code 1) if there is one."""
    wanted = delivery.make(project, store, console).manifest
    package = installation.locate(wanted.package)
    installation.report(installation.examine(wanted, package), console.result)
