#!/usr/bin/env python3
"""The patched tree: the pinned upstream, the series at fuzz 0, verified, in build/.

Exit status: 0 done; 1 drift, what is found is not what is pinned or recorded; 2 conflict, a patch does not apply;
3 wrong usage, or something the tool needs is missing.
"""

import argparse
import os
import sys
from pathlib import Path

try:
    from patchseries import bisect, build, check, dist, doctor, edit, image, lint, rebase, refresh, report, status
    from patchseries.console import Console
    from patchseries.errors import OK, USAGE, ToolError
    from patchseries.store import Store
except ModuleNotFoundError as error:
    print(f"apply.py: the Python module {error.name} is missing: run `make`", file=sys.stderr)
    sys.exit(3)

ROOT = Path(__file__).resolve().parent
COMMANDS = {
    "status": (status.status, "pin, series and build/ at a glance"),
    "lint": (lint.lint, "check headers, form, style and order of the patches"),
    "refresh": (refresh.refresh, "bring edits in build/ into the patches, canonically"),
    "update-pin": (build.update_pin, "accept what the series produces, in upstream.toml"),
    "doctor": (doctor.doctor, "is what this interpreter imports the patched tree?"),
    "overlay": (dist.write_overlay, "dist/*.pyz: the changed files, to lay over an installed package"),
    "edit": (edit.edit, "a shell in build/ with quilt set up"),
    "abort": (rebase.abort, "give a rebase up: patches, series and pin are as before it"),
    "clean": (build.clean, "remove build/"),
}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="apply.py",
        description=__doc__.split("\n")[0],
        epilog=__doc__[__doc__.index("Exit status") :],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_argument_group("instead of building").add_mutually_exclusive_group()
    commands.add_argument(
        "--check",
        nargs="*",
        metavar="REF",
        help="does the series fit these upstreams? (releases, git refs, directories, archives; default: the pin)",
    )
    commands.add_argument("--bisect", metavar="REF", help="the first commit or release where each patch is not clean")
    commands.add_argument("--rebase", metavar="REF", help="move the series onto another upstream")
    commands.add_argument("--continue", dest="proceed", action="store_true", help="go on with a rebase")
    commands.add_argument("--image", nargs=2, metavar=("BASE", "TAG"), help="the patched image TAG over the image BASE")
    commands.add_argument(
        "--wheel", nargs="*", metavar="PART", help="dist/*.whl: for this interpreter, for wheels named so, or for `all`"
    )
    for name, (_function, what) in COMMANDS.items():
        commands.add_argument(f"--{name}", dest="command", action="store_const", const=name, help=what)
    source = parser.add_argument_group("where upstream comes from (default: the pinned release wheel)")
    source.add_argument("--source", metavar="WHERE", help="git URL or clone, directory, wheel or archive")
    source.add_argument("--ref", help="commit, tag or branch of a git WHERE, or a release")
    form = parser.add_argument_group("what --check prints (default: a table)").add_mutually_exclusive_group()
    for name, what in (("json", "facts, as in patchseries/report.schema.json"), ("markdown", "a report for an issue")):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=what)
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="PATCH",
        help="for --rebase and --continue: this patch may say something else than before",
    )
    images = parser.add_argument_group("for --image")
    images.add_argument("--engine", metavar="NAME", help="docker, podman or buildah (default: which can build)")
    images.add_argument("--accept-base", action="store_true", help="BASE may have other files that no patch touches")
    parser.add_argument("--force", action="store_true", help="replace build/ even if it has edits that no patch has")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $XDG_CACHE_HOME/patchseries")
    parser.add_argument("--quiet", action="store_true", help="results and errors only")
    return parser


def refuse_unused(options: argparse.Namespace) -> None:
    """An option that a command would not look at is a mistake, not a wish."""
    rebasing = options.rebase is not None or options.proceed
    elsewhere = options.check is not None or options.bisect is not None
    delivering = options.image is not None or options.wheel is not None
    building = not (options.command or rebasing or elsewhere or delivering)
    if options.source and (options.command or options.proceed or delivering):
        raise ToolError("--source is for building, --check, --bisect and --rebase: the others work on the pin")
    if options.ref and not building and options.check is None:
        raise ToolError("--ref is for building and --check")
    if options.accept and not rebasing:
        raise ToolError("--accept is for --rebase and --continue")
    if options.force and not building:
        raise ToolError("--force is for building")
    if (options.engine or options.accept_base) and not options.image:
        raise ToolError("--engine and --accept-base are for --image")
    if options.form and options.check is None:
        raise ToolError(f"--{options.form} is for --check")


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "patchseries")


def run(options: argparse.Namespace, console: Console, root: Path) -> None:
    refuse_unused(options)
    project, store = build.Project(root), Store(options.cache or default_cache())
    if options.check is not None:
        base, reports = check.check(project, store, console, options.check or [options.ref], options.source)
        return report.publish(base, reports, console, options.form)
    if options.bisect is not None:
        return bisect.bisect(project, store, console, options.bisect, options.source)
    if options.rebase is not None:
        return rebase.start(project, store, console, options.rebase, options.source, options.accept)
    if options.proceed:
        return rebase.proceed(project, store, console, options.accept)
    if options.image:
        return image.build(project, store, console, *options.image, options.engine, options.accept_base)
    if options.wheel is not None:
        return dist.write_wheels(project, store, console, options.wheel)
    if options.command:
        return COMMANDS[options.command][0](project, store, console)
    return build.make(project, store, console, options.source, options.ref, options.force)


def main(argv: list[str], root: Path = ROOT) -> int:
    try:
        options = arguments().parse_args(argv)
    except SystemExit as stop:
        return USAGE if stop.code else OK
    console = Console(options.quiet or options.form is not None)
    try:
        run(options, console, root)
    except ToolError as error:
        console.error(error)
        return error.code
    except KeyboardInterrupt:
        console.error(ToolError("interrupted: build/ is as it was"))
        return USAGE
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
