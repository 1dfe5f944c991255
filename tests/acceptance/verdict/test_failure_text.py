"""What a failed test looks like: one screen of 80 columns, in colour on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import ctypes
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist

    ddp4 = pytest.mark.ddp(world_size=4)


    @ddp4
    def test_with_a_name_that_is_longer_than_most(ddp):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(4))


    @ddp4
    def test_unlike_collectives(ddp):
        if ddp.rank == 2:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(4))


    @ddp4
    def test_crash_among_waiting_peers(ddp):
        with ddp.phase("load the weights of the pretrained model"):
            if ddp.rank == 1:
                ctypes.string_at(0)
        dist.barrier()


    @ddp4
    def test_kill_among_waiting_peers(ddp):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


    @ddp4
    def test_failure_of_one(ddp):
        assert ddp.rank != 3
        dist.barrier()


    @ddp4
    def test_crash_in_the_compiler(ddp):
        def backend(graph, inputs):
            if ddp.rank == 3:
                ctypes.string_at(0)
            return graph.forward

        torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(2))
"""
NAMES = re.findall(r"def (test_\w+)", SOURCE)
SCREEN = 40
"""Lines of a terminal window; the plain one of 24 is filled by the ranks' stacks."""
_COLOUR = re.compile(r"\x1b\[\d*m")


@pytest.fixture(scope="module")
def shown(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_shown.py", SOURCE)
    args = ("--color=yes", "--junitxml=shown.xml")
    return suite.run(*args, env={"COLUMNS": "80"})


@pytest.mark.parametrize("name", NAMES)
def test_text_fits_on_a_screen(shown: Finished, name: str) -> None:
    lines = shown[name].text.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_first_line_is_the_verdict(shown: Finished, name: str) -> None:
    result = shown[name]
    first = " ".join(result.text.partition("\n\n")[0].split())
    message = result.phase("call").message
    if name == "test_failure_of_one":  # pytest's own traceback follows
        assert first.startswith("rank 3 of 4 failed in call")
    else:
        assert first.startswith(message)


def test_states_are_coloured_on_a_terminal(shown: Finished) -> None:
    for state, colour in (("died", 31), ("waits", 33), ("ended", 32)):
        assert re.search(rf"rank \d  (\x1b\[1m|\x1b\[{colour}m){{2}}{state}\x1b", shown.stdout)


def test_colour_goes_nowhere_else(shown: Finished) -> None:
    assert "\x1b" not in "".join(shown[name].text for name in NAMES)
    xml = (shown.directory / "shown.xml").read_text(encoding="utf-8")
    assert "x1B" not in xml
    assert "died" in xml


def test_colour_changes_no_word(shown: Finished) -> None:
    plain = _COLOUR.sub("", shown.stdout)
    for name in NAMES:
        first = shown[name].text.partition("\n")[0]
        assert first in plain
