"""A maintained quilt series on a moving upstream: the package behind `apply.py`.

The modules are named for the data they own and depend one way:

    errors, console      how a run ends and what it prints
    pin                  upstream.toml
    store, upstream      upstream's sources as git trees in one local repository
    patchfile, series    patches as text, and their order
    chain                the git tree after each patch
    build, refresh, lint, catalogue, doctor      what is made from them
"""
