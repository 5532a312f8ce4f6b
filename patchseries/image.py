"""The patched image: a base image and one layer with the changed files.

Owns the call of the container engine. What happens inside the build is the overlay's.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from patchseries import delivery, overlay
from patchseries.build import Project
from patchseries.console import Console
from patchseries.errors import DRIFT, ToolError
from patchseries.manifest import Manifest
from patchseries.store import Store

CONTAINERFILE = Path(__file__).with_name("Containerfile")
_READY = {
    "docker": ["docker", "version", "--format", "{{.Server.Version}}"],
    "podman": ["podman", "info"],
    "buildah": ["buildah", "info"],
}
"""The engines in order of preference, and a command that each answers only if it can build."""


def build(
    project: Project,
    store: Store,
    console: Console,
    base: str,
    tag: str,
    engine: str | None = None,
    accept_base: bool = False,
) -> None:
    """Build `tag` from the image `base`. `engine`: docker, podman or buildah; by default the first one that is ready.

    The layer and the image id depend on base, pin and series alone. ToolError if the base is not the pinned release
    (`accept_base` allows that for files the series does not touch), or if the engine fails.
    """
    engine = ready(engine)
    made = delivery.make(project, store, console)
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch, "context")
        context.mkdir()
        (context / "overlay.pyz").write_bytes(overlay.pack(made.manifest, made.changed))
        identity = Path(scratch, "identity")
        command = [
            *[engine, "build", "--no-cache", f"--file={CONTAINERFILE}", f"--tag={tag}", f"--iidfile={identity}"],
            *[f"--build-arg=BASE_IMAGE={base}", *_options(engine, made.manifest, accept_base)],
            *[f"--label={name}={value}" for name, value in labels(made.manifest, base, accept_base).items()],
            str(context),
        ]
        with console.step(f"Building {tag} from {base} with {engine}"):
            output = _run(command)
        for line in output:
            if line.startswith(("overlay: ", "accepted ", "doctor: ")):
                console.note(line)
        console.result(f"{tag} is {made.manifest.version} over {base}: {identity.read_text().strip()}")


def ready(wanted: str | None) -> str:
    """The engine to use: the wanted one, or the first that can build here."""
    if wanted is not None and wanted not in _READY:
        raise ToolError(f"{wanted!r} is no container engine known here: docker, podman or buildah")
    names = [wanted] if wanted else list(_READY)
    installed = [name for name in names if shutil.which(name)]
    for name in installed:
        if subprocess.run(_READY[name], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return name
    if installed:
        raise ToolError(f"{' and '.join(installed)} cannot build here: `{' '.join(_READY[installed[-1]])}` says why")
    raise ToolError(f"{' or '.join(names)} is needed to build an image: install one (Debian: apt-get install buildah)")


def labels(manifest: Manifest, base: str, accept_base: bool) -> dict[str, str]:
    """The image's labels: OCI's own where there is one."""
    return {
        "org.opencontainers.image.version": manifest.version,
        "org.opencontainers.image.base.name": base,
        "patchseries.upstream.tag": manifest.tag,
        "patchseries.upstream.commit": manifest.commit_label,
        "patchseries.series.sha256": manifest.series,
        "patchseries.base": "differences accepted" if accept_base else "as pinned",
    }


def _options(engine: str, manifest: Manifest, accept_base: bool) -> list[str]:
    time = str(manifest.time)
    times = [f"--build-arg=SOURCE_DATE_EPOCH={time}"] if engine == "docker" else [f"--timestamp={time}"]
    return times + (["--build-arg=OVERLAY_OPTIONS=--accept-base"] if accept_base else [])


def _run(command: list[str]) -> list[str]:
    """The lines that the engine printed. ToolError says why it failed: the overlay's word if it has one."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"},
    )  # fmt: skip
    lines = [_plain(line) for line in done.stdout.splitlines()]
    if done.returncode:
        said = [number for number, line in enumerate(lines) if line.startswith("overlay.pyz: ")]
        if said:
            first = said[-1]
            details = [line.strip() for line in lines[first + 1 :] if line.startswith("  ")]
            raise ToolError(lines[first].removeprefix("overlay.pyz: "), DRIFT, details)
        reasons = [line for line in lines if line.strip()] or ["no message"]
        raise ToolError(f"{command[0]} could not build the image: {reasons[-1]}", details=reasons[-6:-1])
    return lines


def _plain(line: str) -> str:
    """A line of the build's output without what BuildKit puts before it (`#7 1.234 `)."""
    head, _, rest = line.partition(" ")
    seconds, _, text = rest.partition(" ")
    return text if head.startswith("#") and seconds.replace(".", "").isdigit() else line
