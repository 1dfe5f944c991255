"""What a test does to faulthandler and to its signals ends with the test, and is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite

HANDLERS = """
    import ctypes
    import faulthandler
    import os
    import signal
    import sys
    import time

    import pytest

    pytestmark = pytest.mark.ddp(world_size=2)
    # More than the seconds of `later`. It ends no test but those that hang.
    hangs = pytest.mark.ddp(timeout=4)
    FILE = open(os.devnull, "w")

    def ignore():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def put_back():
        before = signal.signal(signal.SIGUSR1, ignore)
        signal.signal(signal.SIGUSR1, before)

    def unregister():
        faulthandler.unregister(signal.SIGUSR1)

    def elsewhere():
        faulthandler.enable(FILE)

    def fatal():
        signal.signal(signal.SIGSEGV, signal.SIG_IGN)

    def fatal_put_back():
        signal.signal(signal.SIGSEGV, signal.signal(signal.SIGSEGV, signal.SIG_IGN))

    def later():
        faulthandler.dump_traceback_later(3, exit=True, file=FILE)

    WAYS = [ignore, put_back, unregister, faulthandler.disable, elsewhere, fatal, fatal_put_back]

    # Of this scope, so that what is left meets the next test.
    @pytest.fixture(scope="class", params=[*WAYS, later], ids=lambda way: way.__name__)
    def way(request):
        return request.param

    class TestEach:
        def test_leaves(self, way):
            way()

        @hangs
        def test_hangs_after(self, way, ddp):
            ddp.gather(1) if ddp.rank else time.sleep(600)

        def test_leaves_again(self, way):
            way()

        def test_dies_after(self, way, ddp):
            if ddp.rank:
                ctypes.string_at(0)

    @pytest.fixture(scope="class")
    def wide():
        before = signal.signal(signal.SIGUSR1, print)
        yield
        signal.signal(signal.SIGUSR1, before)

    @pytest.mark.usefixtures("wide")
    class TestWide:
        def test_one(self):
            assert signal.getsignal(signal.SIGUSR1) is print

        def test_two(self):
            assert signal.getsignal(signal.SIGUSR1) is print

    @hangs
    def test_hangs_unasked(ddp):
        ignore()
        ddp.gather(1) if ddp.rank else time.sleep(600)

    @hangs
    def test_hangs_after_wide(ddp):
        ddp.gather(1) if ddp.rank else time.sleep(600)
"""
SHOWN = {
    "ignore": "the handler of SIGUSR1 (SIG_DFL -> SIG_IGN)",
    "put_back": "",
    "unregister": "faulthandler's handler of SIGUSR1 (on -> off)",
    "disable": "faulthandler (on -> off)",
    "elsewhere": "",
    "fatal": "the handler of SIGSEGV (SIG_DFL -> SIG_IGN)",
    "fatal_put_back": "",
    "later": "",
}


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", HANDLERS)
    return suite.run(*LOADFILE, timeout=120)


@pytest.mark.parametrize("way", SHOWN)
def test_it_is_reported(run: Finished, way: str) -> None:
    assert run[f"TestEach::test_leaves[{way}]"].verdict == "passed"
    warnings = [text for text in run.warnings if f"test_leaves[{way}]" in text]
    assert [SHOWN[way] in text for text in warnings] == [True] * bool(SHOWN[way])


@pytest.mark.parametrize("way", SHOWN)
def test_the_next_hang_has_its_stacks(run: Finished, way: str) -> None:
    result = run[f"TestEach::test_hangs_after[{way}]"]
    assert "timed out after 4 s" in result.text
    assert "rank 0 in call, most recent call first:\n> test_suite.py" in result.text


@pytest.mark.parametrize("way", SHOWN)
def test_the_next_crash_has_its_line(run: Finished, way: str) -> None:
    text = run[f"TestEach::test_dies_after[{way}]"].text
    assert "SIGSEGV" in text
    assert "in test_dies_after" in text
    assert "left no stack" not in text


@pytest.mark.parametrize("name", ["TestWide::test_one", "TestWide::test_two"])
def test_a_wide_fixture_keeps_its_handler(run: Finished, name: str) -> None:
    assert run[name].verdict == "passed"
    assert not [text for text in run.warnings if name in text]


def test_a_hang_after_a_wide_fixture_has_its_stacks(run: Finished) -> None:
    assert "rank 0 in call, most recent call first:" in run["test_hangs_after_wide"].text


def test_a_rank_that_cannot_be_asked_is_named(run: Finished) -> None:
    text = run["test_hangs_unasked"].text
    assert "ranks 0-1 in call gave no stack: it is suspended, or its code ignores" in text
