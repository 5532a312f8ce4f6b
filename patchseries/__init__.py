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
    build, edit, refresh, lint, status, doctor      the commands
"""
