"""A maintained quilt series on a moving upstream: the package behind `apply.py`.

The modules are named for the data they own and depend one way:

    errors, console      how a run ends and what it prints
    pin                  upstream.toml
    listing, store       files by mode and blob id; git trees in one local repository
    wheel, upstream      upstream's sources as one of those trees
    patchfile, series    patches as text, and their order
    chain, export        the git tree after each patch, and a patch from two trees
    symbols              functions and classes of Python sources
    header, catalogue    what a patch says of itself, and PATCHES.md
    watches              the upstream symbols that a patch relies on
    placement, ownership where the lines of a hunk stand, and which hunk made which line
    verdict              whether a patch fits another tree, and is the same change there
    moves, history       what upstream renamed and moved, and its commits
    check, report        the verdict on a series, and its three forms
    intent, retired      what a patch says before and after a rebase, and the patches that are gone
    manifest, delivery   what is delivered, by content, and the way there from pin and series
    installation         what an interpreter has in place of it
    overlay, dist, image the changed files over an installed package, as a wheel, and as an image
    build, edit, refresh, lint, status, doctor, bisect, rebase      the other commands
"""
