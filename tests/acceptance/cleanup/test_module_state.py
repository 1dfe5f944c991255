"""What tests with one `module_state` leave in modules reaches no test with another."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite

LIBRARY = """
    import functools
    import threading
    from contextvars import ContextVar

    import torch

    settings = None
    counts = {"calls": {}}
    total = torch.zeros(1)
    local = threading.local()
    current = ContextVar("current")


    class Borg:
        shared = {}

        def __init__(self):
            self.__dict__ = self.shared


    class Engine:
        __slots__ = ("size",)


    engine = Engine()


    def singleton(cls):
        instances = {}

        @functools.wraps(cls)
        def the_one():
            return instances.setdefault(cls, cls())

        return the_one


    @singleton
    class Registry:
        pass


    @functools.cache
    def folder_of(name):
        return f"/runs/{name}"


    @functools.cache
    def is_available(name):
        return False


    def remember(name, known=[]):
        known.append(name)


    def rank():
        pass


    def set_settings(value):
        global settings
        settings = value


    def leave(way):
        if way == "global":
            set_settings("mine")
        elif way == "entry":
            counts["calls"]["mine"] = 1
        elif way == "class":
            Borg().size = 2
        elif way == "attribute":
            Borg.size = 2
        elif way == "slot":
            engine.size = 2
        elif way == "function":
            rank.value = 2
        elif way == "closure":
            Registry()
        elif way == "cache":
            folder_of("mine")
        elif way == "default":
            remember("mine")
        elif way == "tensor":
            total.add_(1)
        elif way == "local":
            local.size = 2
        elif way == "context":
            current.set(2)
        elif way == "import":
            import imported_late
        elif way == "patched":
            torch.utils.data.DataLoader.__len__ = len
        elif way == "nothing":
            set_settings(settings)
            counts["other"] = 1
            del counts["other"]
            is_available("mine")
            # As torch's compiler does: what sympy keeps are caches.
            import sympy
            sympy.expand((sympy.Symbol("mine") + 1) ** 2)
"""

TESTS = """
    import os

    import library
    import pytest

    PIDS = os.environ["PIDS"]


    def say(ddp, test):
        pids = ddp.gather(os.getpid())
        if ddp.rank == 0:
            with open(PIDS, "a") as stream:
                print(test, *pids, file=stream)


    def members(way):
        @pytest.mark.ddp(world_size=2, module_state=f"leaves {way}")
        @pytest.mark.parametrize("turn", [0, 1])
        def test_leaves(ddp, turn):
            say(ddp, f"{way}-{turn}")
            if ddp.rank == 1 and turn == 0:
                library.leave(way)

        @pytest.mark.ddp(world_size=2, module_state=f"after {way}")
        def test_follows(ddp):
            say(ddp, f"{way}-after")

        return test_leaves, test_follows


    test_nothing, test_after_nothing = members("nothing")
"""

WAYS = [
    *("global", "entry", "class", "attribute", "slot", "function", "closure", "cache", "default"),
    *("tensor", "local", "context", "import", "patched"),
]

EACH = """
    test_{way}, test_after_{way} = members("{way}")
"""


@pytest.fixture(scope="module")
def pids(new_suite: Callable[[], Suite]) -> dict[str, list[str]]:
    """The processes of the ranks, by way of leaving something and turn."""
    suite = new_suite()
    suite.write("library.py", textwrap.dedent(LIBRARY))
    suite.write("imported_late.py", "")
    each = "".join(textwrap.dedent(EACH).format(way=way) for way in WAYS)
    suite.write("test_members.py", textwrap.dedent(TESTS) + each)
    log = suite.write("pids", "")
    finished: Finished = suite.run(*LOADFILE, env={"PIDS": str(log)}, timeout=120)
    finished.assert_outcomes(passed=3 * (len(WAYS) + 1))
    lines = (line.split() for line in log.read_text().splitlines())
    return {name: numbers for name, *numbers in lines}


@pytest.mark.parametrize("way", WAYS)
def test_what_one_rank_keeps_costs_the_pool(pids: dict[str, list[str]], way: str) -> None:
    assert pids[f"{way}-0"] == pids[f"{way}-1"]
    assert not {*pids[f"{way}-1"]} & {*pids[f"{way}-after"]}


def test_what_keeps_nothing_costs_no_rank(pids: dict[str, list[str]]) -> None:
    assert pids["nothing-0"] == pids["nothing-1"] == pids["nothing-after"]
