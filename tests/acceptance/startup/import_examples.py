"""A suite of many modules that write down when, and in which process, they are imported.

Data for ``test_imports.py``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.acceptance.startup.environment_examples import install
from tests.acceptance.suite import INNER, Finished, Suite

NOTE = """
import os

def note(*words):
    with open(os.environ["NOTES"], "a") as stream:
        stream.write(" ".join(map(str, (os.getpid(), *words))) + "\\n")

PID = os.getpid()
note("import", __name__)
"""
BY_NAME = NOTE + "import importlib\n\nimportlib.import_module('needed_' + NEEDS)\n"
READING = NOTE + 'RANK = os.environ.get("RANK")\n'
RELYING = NOTE + "from reading import RANK\n"
COPYING = NOTE + 'RANK = os.environ.copy().get("RANK")\n'
ITERATING = NOTE + 'RANK = {k: v for k, v in os.environ.items() if "RA" in k}.get("RANK")\n'
BEFORE_ANY_RANK = ("named_plugin", "entered_plugin")
"""Installed plugins of pytest, which its session in the host has loaded."""
ASKING = ("reading", "relying", "copying", "iterating")
"""Other installed packages that see the environment, each in another way."""
THREADED = (
    NOTE
    + """
import threading

THREAD = threading.Thread(target=threading.Event().wait, daemon=True)
THREAD.start()
"""
)
GIVEN = """
def given(config):
    return [config.getoption(name, "unknown") for name in ("flavour", "colour", "size")]
"""
HOOKS = (
    GIVEN
    + """
import pytest

def pytest_configure(config):
    note("hook", __name__, "configure", os.environ.get("RANK"), *given(config))

def pytest_sessionstart(session):
    note("hook", __name__, "sessionstart", os.environ.get("RANK"), *given(session.config))

@pytest.fixture
def from_NAME():
    return PID
"""
)
CONFTEST = (
    READING
    + HOOKS.replace("NAME", "conftest")
    + """
pytest_plugins = ["listed_plugin"]

def pytest_addoption(parser):
    parser.addoption("--flavour", default="plain")
    parser.addoption("--colour", default="none")
    parser.addini("shape", "what ini files know of", default="round")
"""
)
PLUGIN = """
def pytest_addoption(parser):
    parser.addoption("--size", type=int, default=0)
"""
RECORD = (
    READING
    + GIVEN
    + """
import json, sys
import pytest

pytestmark = pytest.mark.ddp(world_size=2)

def record(request, **facts):
    imported = sorted(name for name in sys.modules if name in OWN)
    facts |= {"imported": imported, "at import": RANK, "options": given(request.config)}
    facts["shape"] = request.config.getini("shape")
    note("test", request.node.name, os.environ["RANK"], json.dumps(facts))
"""
)
OWN = ("test_first", "own_first", "test_second", "own_second", "pack.test_one", "pack.test_two")
FIRST = (
    RECORD
    + """
import own_first, threaded, unrelated
import reading, relying, copying, iterating, named_plugin, entered_plugin

def test_first(request, from_conftest, from_own_plugin, from_listed_plugin, from_env_plugin):
    record(
        request,
        asking={name: sys.modules[name].RANK for name in ASKING},
        thread=threaded.THREAD.is_alive(),
        unrelated=unrelated.PID,
        plugins=[from_conftest, from_own_plugin, from_listed_plugin, from_env_plugin],
    )
"""
)
SECOND = (
    RECORD
    + """
import own_second, unrelated

def test_second(request, from_other):
    record(request, folder=from_other, unrelated=unrelated.PID)
"""
)
PACKAGED = (
    RECORD
    + """
def test_NAME(request, crate):
    record(request, crate=crate)
"""
)
CRATE = (
    NOTE
    + """
import itertools
import pytest

NUMBERS = itertools.count()

@pytest.fixture(scope="package")
def crate():
    note("crate", "up")
    yield next(NUMBERS)
    note("crate", "down")
"""
)
PLAIN = (
    NOTE
    + """
import own_plain

def test_plain():
    pass
"""
)
INI = """
    [pytest]
    asyncio_default_fixture_loop_scope = function
    addopts = -p own_plugin -p named_plugin --colour=blue
    shape = square
"""
FILES = {
    "pytest.ini": INI,
    "conftest.py": CONFTEST,
    "own_plugin.py": READING + HOOKS.replace("NAME", "own_plugin") + PLUGIN,
    "listed_plugin.py": READING + HOOKS.replace("NAME", "listed_plugin"),
    "env_plugin.py": READING + HOOKS.replace("NAME", "env_plugin"),
    "test_first.py": FIRST,
    "own_first.py": NOTE,
    "other/conftest.py": READING
    + "import pytest\n\n@pytest.fixture\ndef from_other():\n    return RANK\n",
    "other/test_second.py": SECOND,
    "own_second.py": 'NEEDS = "by_name"\n' + BY_NAME,
    "pack/__init__.py": "",
    "pack/conftest.py": CRATE,
    "pack/test_one.py": PACKAGED.replace("NAME", "one"),
    "pack/test_two.py": PACKAGED.replace("NAME", "two"),
    "own_plain.py": 'NEEDS = "by_plain_tests"\n' + BY_NAME,
    "test_plain.py": PLAIN,
}


def write_modules(suite: Suite) -> dict[str, str]:
    """Write the suite; return the environment that its runs need, but for ``NOTES``."""
    site = suite.directory.parent / f"{suite.directory.name}-outside" / "site-packages"
    install(site, "reading", READING)
    install(site, "relying", RELYING)
    install(site, "copying", COPYING)
    install(site, "iterating", ITERATING)
    install(site, "named_plugin", READING)
    install(site, "entered_plugin", READING, entry_point="pytest11")
    install(site, "threaded", THREADED)
    install(site, "unrelated", NOTE)
    install(site, "needed_by_name", NOTE)
    install(site, "needed_by_plain_tests", NOTE)
    for name, source in FILES.items():
        asked = (*ASKING, *BEFORE_ANY_RANK)
        given = source.replace("in OWN", f"in {OWN}").replace("in ASKING", f"in {asked}")
        suite.write(name, given)
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (INNER, suite.directory, site))),
        "PYTEST_PLUGINS": "env_plugin",
    }


@dataclass(frozen=True)
class Note:
    """One thing that a process did."""

    pid: int
    kind: str
    """"import", "hook", "test" or "crate"."""
    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Noted:
    """A run, and what all its processes did in the order of time."""

    finished: Finished
    notes: tuple[Note, ...]

    @property
    def controller(self) -> int:
        return self.notes[0].pid

    @property
    def ranks(self) -> dict[str, int]:
        """Pids by rank."""
        pids = {note.words[0]: note.pid for note in self.notes if note.kind == "test"}
        assert sorted(pids) == ["0", "1"], self.finished.tail()
        return pids

    def of(self, pid: int, kind: str) -> list[Note]:
        return [note for note in self.notes if note.pid == pid and note.kind == kind]

    def importers(self, module: str) -> Counter[int]:
        """How often each process imported it."""
        return Counter(n.pid for n in self.notes if n.kind == "import" and n.name == module)

    def facts(self, test: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What a test found, with each rank."""
        for rank, pid in self.ranks.items():
            (found,) = (note.words[1] for note in self.of(pid, "test") if note.name == test)
            yield rank, json.loads(found)


def run_noted(suite: Suite, env: dict[str, str], *args: str) -> Noted:
    """Run pytest on the suite, with what ``write_modules`` gave."""
    path = suite.directory.parent / f"{suite.directory.name}-notes{len(args)}"
    finished = suite.run(*args, env=env | {"NOTES": str(path)}, extra=())
    lines = (line.split(" ", 4) for line in path.read_text().splitlines())
    notes = tuple(Note(int(pid), kind, name, tuple(words)) for pid, kind, name, *words in lines)
    return Noted(finished, notes)
