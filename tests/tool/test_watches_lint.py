"""A call into upstream that no header watches is found."""

import pytest
from forks import change
from upstreams import add

TOOLS = b"""\
import logging

logger = logging.getLogger(__name__)
LIMIT = 4
_flag = False


def helper(x):
    return x


class Base:
    kind = "base"

    def run(self):
        return self.step()

    def step(self):
        return 1


class _Settings:
    DEPTH = 3


settings = _Settings()
"""
EDITED = b"""\
from sglang.srt.tools import helper


def local(x):
    return x


class Runner:
    def go(self):
        value = 1
        return value

    def stay(self):
        return 0
"""


@pytest.fixture
def fork(fork):
    fork.pin(
        {
            **fork.upstream,
            "srt/tools.py": TOOLS,
            "srt/runner.py": EDITED,
            "srt/again/__init__.py": b"from ..tools import Base\n",
        }
    )
    return fork


def unwatched(fork):
    _status, output = fork.run("--lint")
    prefix = "python/sglang/srt/"
    lines = [line for line in output.splitlines() if "no header watches it" in line]
    return {line.split(" uses ")[1].split(" ")[0].removeprefix(prefix) for line in lines}


def new_file(fork, code, **header):
    add(fork, "new.patch", {"srt/new.py": code}, **header)
    return unwatched(fork)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (b"from sglang.srt.tools import helper\n\nhelper(1)\n", "tools.py::helper"),
        (b"from sglang.srt.tools import helper as h\n\nh(1)\n", "tools.py::helper"),
        (b"import sglang.srt.tools\n\nsglang.srt.tools.helper(1)\n", "tools.py::helper"),
        (b"from sglang.srt import tools\n\nprint(tools.LIMIT)\n", "tools.py::LIMIT"),
        (b"from .tools import Base\n\n\nclass Mine(Base):\n    pass\n", "tools.py::Base"),
        (b"from sglang.srt.again import Base\n\nprint(Base.kind)\n", "tools.py::Base.kind"),
        (b"from sglang.srt.tools import settings\n\nprint(settings.DEPTH)\n", "tools.py::_Settings.DEPTH"),
        (b"def late():\n    from sglang.srt.tools import helper\n\n    return map(helper, [])\n", "tools.py::helper"),
        (b"from sglang.srt.tools import helper\n\n\n@helper\ndef mine():\n    pass\n", "tools.py::helper"),
    ],
)
def test_a_use_is_found(fork, code, wanted):
    assert new_file(fork, code) == {wanted}


@pytest.mark.parametrize(
    "code",
    [
        b"from sglang.srt.tools import Base\n\n\ndef f(x: Base) -> Base:\n    return x\n",  # annotations only
        b"from sglang.srt.tools import logger\n\nlogger.info(1)\n",  # neither function, class nor constant
        b"from sglang.srt.tools import _flag\n\nprint(_flag)\n",
        b"from os import path\n\npath.join()\n",
        b"def f(helper):\n    return helper(1)\n",
        b"def helper(x):\n    return x\n\n\nhelper(1)\n",
    ],
)
def test_what_is_no_use_of_upstream_is_not(fork, code):
    assert new_file(fork, code) == set()


def test_a_use_in_an_edited_file(fork):
    edited = change(EDITED, (b"        return value\n", b"        return local(helper(value)) + self.stay()\n"))
    add(fork, "edit.patch", {"srt/runner.py": edited})
    assert unwatched(fork) == {"tools.py::helper", "runner.py::local", "runner.py::Runner.stay"}


def test_a_use_in_an_untouched_line_is_upstreams_own(fork):
    add(fork, "edit.patch", {"srt/runner.py": change(EDITED, (b"        value = 1\n", b"        value = 2\n"))})
    assert unwatched(fork) == set()


def test_what_the_series_edits_or_adds_need_not_be_watched(fork):
    add(fork, "edit.patch", {"srt/tools.py": change(TOOLS, (b"    return x\n", b"    return 2 * x\n"))})
    add(fork, "new.patch", {"srt/mine.py": b"def mine():\n    pass\n"})
    code = b"from sglang.srt.mine import mine\nfrom sglang.srt.tools import helper\n\nmine(helper(1))\n"
    add(fork, "use.patch", {"srt/use.py": code}, depends="edit.patch, new.patch")
    assert unwatched(fork) == set()


@pytest.mark.parametrize("watches", ["tools.py::Base.step", "tools.py::Base", "tools.py"])
def test_a_symbol_its_class_or_its_file_is_watched(fork, watches):
    code = b"from sglang.srt.tools import Base\n\nBase.step(None)\n"
    assert new_file(fork, code, watches=f"python/sglang/srt/{watches}") == set()


def test_any_header_of_the_series_will_do(fork):
    code = b"from sglang.srt.tools import helper\n\nhelper(1)\n"
    add(fork, "first.patch", {"srt/first.py": code})
    add(fork, "second.patch", {"srt/second.py": code}, watches="python/sglang/srt/tools.py::helper")
    assert unwatched(fork) == set()


def test_the_header_that_is_missing_is_written_out(fork):
    code = b"from sglang.srt.tools import LIMIT, helper\n\nhelper(LIMIT)\n"
    add(fork, "new.patch", {"srt/new.py": code}, watches="python/sglang/srt/runner.py::local")
    _status, output = fork.run("--lint")
    lines = [f" python/sglang/srt/{name}" for name in ("runner.py::local", "tools.py::LIMIT", "tools.py::helper")]
    assert "\n".join(["Watches:", *lines]) in output
