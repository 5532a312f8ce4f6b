"""A delivery: the verified patched package of the pin, ready to leave this repository.

Owns the way from pin and series to a `Manifest` and the contents that go with it. Image, wheel, overlay and doctor all
start here, so all of them mean the same bytes.
"""

from dataclasses import dataclass

from patchseries import build, chain, pin, series, upstream
from patchseries.build import Project
from patchseries.console import Console
from patchseries.listing import Listing
from patchseries.manifest import Manifest
from patchseries.pin import Pin
from patchseries.store import Store


@dataclass(frozen=True)
class Delivery:
    """changed: content of every touched file that the patched package has, by path below the package."""

    pin: Pin
    manifest: Manifest
    changed: dict[str, bytes]


def make(project: Project, store: Store, console: Console) -> Delivery:
    """Apply the series to the pin in scratch; ToolError unless it gives what `upstream.toml` says."""
    pinned = pin.load(project.pin)
    patches = series.load(project.series, project.patches)
    found = upstream.pinned(pinned, store, console)
    with console.step(f"Applying {len(patches)} patches"):
        steps = chain.apply_series(store, found.tree, patches)
    made = build.products(store, project, steps)
    build.verify(pinned, found, made)
    prefix = f"python/{pinned.package}/"
    manifest = Manifest(
        package=pinned.package,
        release=pinned.release,
        version=pinned.version,
        tag=pinned.tag,
        commit=found.commit,
        series=made.series,
        patches=tuple(patch.name for patch in patches),
        before=_below(store.listing(found.tree), prefix),
        after=_below(store.listing(steps[-1].after), prefix),
    )
    blobs = {path: manifest.after[path].blob for path in manifest.touched if path in manifest.after}
    contents = store.read(blobs.values())
    return Delivery(pinned, manifest, {path: contents[blob] for path, blob in blobs.items()})


def _below(listing: Listing, prefix: str) -> Listing:
    return {path.removeprefix(prefix): entry for path, entry in listing.items() if path.startswith(prefix)}
