"""A hunk fits only where it was meant: same function, class and block, and no doubt (accidents 1 and 5)."""

import pytest
from forks import change
from upstreams import ENGINE, add, directory, only_hunk

LONG = (
    b"def one(x):\n    if x:\n" + b"".join(b"        %c = %d\n" % (96 + n, n) for n in range(1, 9)) + b"    return x\n"
)
START = (b"        self.rows = rows\n", b"        self.rows = list(rows)\n")


@pytest.fixture
def engine(fork):
    """A fork of one patch, which edits `Engine.start`."""
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    add(fork, "edit.patch", {"engine.py": change(ENGINE, START)})
    return fork


def against(fork, tmp_path, content, path="engine.py"):
    return only_hunk(fork, directory(tmp_path / "next", {**fork.upstream, path: content}))


def test_unchanged_is_clean(engine, tmp_path):
    hunk = against(engine, tmp_path, ENGINE)
    assert (hunk["verdict"], hunk["line"], hunk["symbol"]) == ("clean", 9, "Engine.start")


def test_a_change_elsewhere_is_clean(engine, tmp_path):
    hunk = against(engine, tmp_path, change(ENGINE, (b"    step = len(rows) // size\n", b"    step = 1\n")))
    assert hunk["verdict"] == "clean"


def test_lines_above_are_an_offset(engine, tmp_path):
    hunk = against(engine, tmp_path, change(ENGINE, (b"import os\n", b"import os\nimport sys\nimport time\n")))
    assert (hunk["verdict"], hunk["stated_line"], hunk["line"], hunk["cause"]) == ("offset", 9, 11, "+2 lines")


def test_a_function_that_moved_in_its_file_is_an_offset(fork, tmp_path):
    other = b"def other(x):\n" + b"".join(b"    step_%d(x)\n" % n for n in range(9)) + b"    return 2 * x\n\n\n"
    before = LONG + b"\n\n" + other
    fork.pin({**fork.upstream, "engine.py": before})
    add(fork, "edit.patch", {"engine.py": change(before, (b"        d = 4\n", b"        d = 44\n"))})
    hunk = against(fork, tmp_path, other + LONG)
    assert (hunk["verdict"], hunk["symbol"], hunk["line"] - hunk["stated_line"]) == ("offset", "one", 13)


def test_changed_context_is_fuzz_and_does_not_go_in(engine, tmp_path):
    hunk = against(
        engine,
        tmp_path,
        change(
            ENGINE,
            (
                b"            rows = split(rows, self.size)\n            send",
                b"            rows = cut(rows)\n            send",
            ),
        ),
    )
    assert hunk["verdict"] == "fuzz"
    assert "fits with fuzz 2 at line 9" in hunk["cause"] and "`rows = split(rows, self.size)`" in hunk["cause"]


def test_fuzz_into_another_function_is_misplaced(fork, tmp_path):
    """GNU patch with its default fuzz puts this hunk into `receive` and exits 0."""
    fork.pin({**fork.upstream, "engine.py": ENGINE})
    body = b"    total = 0\n    for row in rows:\n        total += row\n    print(total)\n    return total\n"
    add(fork, "edit.patch", {"engine.py": change(ENGINE, (body, body.replace(b"+= row", b"+= 2 * row")))})
    hunk = against(
        fork, tmp_path, change(ENGINE, (b"def send(rows):\n" + body, b"def send(rows):\n    return sum(rows)\n"))
    )
    assert hunk["verdict"] == "misplaced" and "into `receive" in hunk["cause"]


def test_an_exact_match_in_another_function_is_misplaced(fork, tmp_path):
    """Not even an offset betrays it: upstream emptied the one function and gave its text to the other."""
    fork.pin({**fork.upstream, "engine.py": LONG})
    add(fork, "edit.patch", {"engine.py": change(LONG, (b"        d = 4\n", b"        d = 44\n"))})
    hunk = against(fork, tmp_path, change(LONG, (b"def one(x)", b"def two(x)")))
    assert hunk["verdict"] == "misplaced" and hunk["line"] == hunk["stated_line"]
    assert "`one > if`" in hunk["cause"] and "`two > if`" in hunk["cause"]


def test_a_method_that_is_now_another_class_is_misplaced(engine, tmp_path):
    content = change(ENGINE, (b"    def start(self, rows):\n", b"\nclass Other:\n    def start(self, rows):\n"))
    hunk = against(engine, tmp_path, content)
    assert (
        hunk["verdict"] == "misplaced"
        and "`Other.start`" in hunk["cause"]
        and "`Engine.start` is gone" in hunk["cause"]
    )


def test_another_branch_of_the_same_function_is_misplaced(fork, tmp_path):
    fork.pin({**fork.upstream, "engine.py": LONG})
    add(fork, "edit.patch", {"engine.py": change(LONG, (b"        d = 4\n", b"        d = 44\n"))})
    hunk = against(fork, tmp_path, change(LONG, (b"    if x:\n", b"    if x:\n        pass\n    else:\n")))
    assert hunk["verdict"] == "misplaced" and "`one > else`" in hunk["cause"]


def test_a_new_elif_above_is_no_other_branch(fork, tmp_path):
    before = change(LONG, (b"    if x:\n", b"    if x == 1:\n        pass\n    elif x == 2:\n"))
    fork.pin({**fork.upstream, "engine.py": before})
    add(fork, "edit.patch", {"engine.py": change(before, (b"        d = 4\n", b"        d = 44\n"))})
    more = b"    elif x == 3:\n        pass\n    elif x == 2:\n"
    assert against(fork, tmp_path, change(before, (b"    elif x == 2:\n", more)))["verdict"] == "offset"


BLOCK = b"".join(b"    %c = take(%c)\n" % (97 + n, 96 + n) for n in range(1, 8))
REPEATED = b"def f(x):\n" + BLOCK + b"    middle(x)\n" + BLOCK + b"    return x\n"


def edited_second(content):
    """The second block of REPEATED edited in its middle, with nothing but the block around it."""
    head, tail = content.split(b"    middle(x)\n")
    return head + b"    middle(x)\n" + tail.replace(b"    e = take(d)\n", b"    e = give(d)\n")


def test_a_repeated_block_stays_clean_while_nothing_moves(fork, tmp_path):
    fork.pin({**fork.upstream, "engine.py": REPEATED})
    add(fork, "edit.patch", {"engine.py": edited_second(REPEATED)})
    assert against(fork, tmp_path, REPEATED)["verdict"] == "clean"


def test_a_repeated_block_is_found_by_its_neighbours(fork, tmp_path):
    fork.pin({**fork.upstream, "engine.py": REPEATED})
    add(fork, "edit.patch", {"engine.py": edited_second(REPEATED)})
    assert against(fork, tmp_path, b"import os\n\n\n" + REPEATED)["verdict"] == "offset"


def test_one_repetition_gone_is_ambiguous(fork, tmp_path):
    """The lines match once, exactly, in the same function: but they are those of the other block."""
    fork.pin({**fork.upstream, "engine.py": REPEATED})
    add(fork, "edit.patch", {"engine.py": edited_second(REPEATED)})
    hunk = against(fork, tmp_path, b"def f(x):\n" + BLOCK + b"    middle(x)\n    return x\n")
    assert hunk["verdict"] == "ambiguous"


def test_one_repetition_more_is_ambiguous(fork, tmp_path):
    fork.pin({**fork.upstream, "engine.py": REPEATED})
    add(fork, "edit.patch", {"engine.py": edited_second(REPEATED)})
    hunk = against(fork, tmp_path, b"def f(x):\n" + BLOCK + b"    more(x)\n" + REPEATED.removeprefix(b"def f(x):\n"))
    assert hunk["verdict"] == "ambiguous" and "3 times" in hunk["cause"]


def test_a_body_that_is_doubled_is_ambiguous(fork, tmp_path):
    """The end of the function makes the lines unique; but the pin's own lines are those of the first half."""
    body = b"    a = take(x)\n    b = take(a)\n    c = take(b)\n    d = take(c)\n"
    once = b"def f(x):\n" + body + b"\n\ndef g(x):\n    return x\n"
    fork.pin({**fork.upstream, "engine.py": once})
    add(fork, "edit.patch", {"engine.py": change(once, (b"    d = take(c)\n", b"    again(c)\n    d = take(c)\n"))})
    hunk = against(fork, tmp_path, once.replace(body, body + body))
    assert hunk["verdict"] == "ambiguous" and "stand elsewhere now" in hunk["cause"]


def test_lost_crs_are_a_conflict(fork, tmp_path):
    dos = ENGINE.replace(b"\n", b"\r\n")
    fork.pin({**fork.upstream, "engine.py": dos})
    add(fork, "edit.patch", {"engine.py": change(dos, (b"self.rows = rows\r\n", b"self.rows = list(rows)\r\n"))})
    assert against(fork, tmp_path, ENGINE)["verdict"] == "conflict"


def test_a_file_that_is_no_python_here_is_an_error(engine, tmp_path):
    hunk = against(engine, tmp_path, change(ENGINE, (b"def split(rows, size):", b"def split(rows, size) =>")))
    assert hunk["verdict"] == "error" and "not Python" in hunk["cause"]


def test_a_file_that_is_no_python_at_all_is_judged_by_its_lines(fork, tmp_path):
    text = b"".join(b"key%d: value\n" % n for n in range(20))
    fork.pin({**fork.upstream, "settings.yaml": text})
    add(fork, "edit.patch", {"settings.yaml": text.replace(b"key9: value\n", b"key9: other\n")})
    assert against(fork, tmp_path, b"# top\n" + text, "settings.yaml")["verdict"] == "offset"
    changed = text.replace(b"key11: value\n", b"key11: new\n")
    assert against(fork, tmp_path, changed, "settings.yaml")["verdict"] == "fuzz"
