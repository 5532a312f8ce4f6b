"""export(import(patch)) is the patch, byte for byte, for whatever a patch can do to a tree."""

import unidiff
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchseries import chain, patchfile
from patchseries.export import patch_from_trees
from patchseries.listing import EXECUTABLE, REGULAR

PATHS = st.sampled_from(["a.py", "b.py", "d/c.py", "d/e/f.py", "d.py", "Z.py"])
LINES = st.lists(
    st.sampled_from(b"|a = 1|b = 2|-- c|++ d|@@ -1 +1 @@|--- a/x|\\ No|e\r|\xff\xe9".split(b"|")),
    max_size=25,
)
CONTENTS = st.builds(lambda lines, end: b"\n".join(lines) + end, LINES, st.sampled_from([b"", b"\n", b"\r\n"]))
TREES = st.dictionaries(PATHS, st.tuples(CONTENTS, st.sampled_from([REGULAR, EXECUTABLE])), max_size=5)
HEADER = b"Description: x\n More.\n .\n And more: yes."


def in_git(files):
    """No path may be a file and a directory at once; `d.py` and `d/` are two names, so all of PATHS is fine."""
    return [(path, mode, content) for path, (content, mode) in files.items()]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TREES, after=TREES)
def test_a_patch_survives_parsing_and_applying(fork, before, after):
    store = fork.store
    old = store.import_files("refs/test/old", in_git(before))
    new = store.import_files("refs/test/new", in_git(after))
    if old == new:
        return
    patch = patch_from_trees(store, "x.patch", HEADER, old, new)
    text = patchfile.render(patch)
    assert patchfile.parse("x.patch", text) == patch
    assert patchfile.render(patchfile.parse("x.patch", text)) == text
    step = chain.apply_patch(store, old, patchfile.parse("x.patch", text))
    assert step.after == new and step.offsets == ()
    assert patchfile.render(patch_from_trees(store, "x.patch", HEADER, old, step.after)) == text


def test_a_second_parser_reads_the_same(fork):
    """unidiff, a library of its own, counts what this parser counts."""
    fork.add_change("one.patch", linear_py=fork.upstream["linear.py"].replace(b"= 7\n", b"= 77\n"), other_py=None)
    path = fork.add_change("two.patch", srt__a_py=b"A = 1\n\nB = 2\n", linear_py=b"# short\n")
    for each in (path, path.with_name("one.patch")):
        patch = patchfile.read(each)
        other = unidiff.PatchSet(each.read_text())
        assert [f.path for f in other] == [diff.path for diff in patch.files]
        assert [len(f) for f in other] == [len(diff.hunks) for diff in patch.files]
        assert other.added == sum(len(hunk.added()) for diff in patch.files for hunk in diff.hunks)
        assert other.removed == sum(len(hunk.removed()) for diff in patch.files for hunk in diff.hunks)


def test_header_fields_are_read_as_dep3_has_them():
    patch = patchfile.PatchFile("x.patch", HEADER + b"\nWatches:\n a.py::b\n c.py::d\nBug: none")
    assert patch.fields == {
        "Description": "x\nMore.\n\nAnd more: yes.",
        "Watches": "a.py::b\nc.py::d",
        "Bug": "none",
    }
