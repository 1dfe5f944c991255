"""Functions of the standard library that a test replaces until its teardown, as with monkeypatch.

Fixtures take them back at the end, so that the plugin's own code in a rank meets them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SUITE = """
    import inspect
    import os
    import sys
    import threading
    import time

    import pytest

    pytestmark = pytest.mark.ddp(world_size=2)

    def broken(*arguments, **keywords):
        raise RuntimeError("replaced by a test")

    REPLACED = [
        (sys, "_getframe"),
        (os, "getpid"),
        (os, "kill"),
        (threading, "get_ident"),
        (threading, "enumerate"),
        (inspect, "unwrap"),
        (time, "monotonic"),
        (time, "time"),
    ]
    NAMES = [name for _, name in REPLACED]

    @pytest.mark.parametrize(("module", "name"), REPLACED, ids=NAMES)
    def test_replaced(module, name, monkeypatch):
        monkeypatch.setattr(module, name, broken)

    @pytest.mark.parametrize(("module", "name"), REPLACED, ids=NAMES)
    def test_missing(module, name, monkeypatch):
        monkeypatch.delattr(module, name)

    def test_another_number(monkeypatch):
        monkeypatch.setattr(os, "getpid", lambda: 4242)

    def test_after(ddp):
        ddp.barrier()
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", SUITE)
    return suite.run()


def test_ranks_do_without_what_a_test_replaces(run: Finished) -> None:
    run.assert_outcomes(passed=18)
    assert run["test_after"].verdict == "passed"


def test_no_rank_is_lost(run: Finished) -> None:
    assert "error outside of the tests" not in run.output
