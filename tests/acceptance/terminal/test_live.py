"""The line that shows what the ranks of a long test are doing, on a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time
from dataclasses import dataclass

import pyte
import pytest

from tests.acceptance.suite import Suite
from tests.environment import without_outer_run
from tests.warm import interpreter

pytestmark = pytest.mark.skipif(
    "DDP_ACCEPTANCE_ARGS" in os.environ, reason="the arguments of these runs are their subject"
)

_LIMIT = 120
SOURCE = """
    import logging
    import time

    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=3)
    def test_short(ddp):
        dist.barrier()

    @pytest.mark.ddp(world_size=3)
    def test_slow(ddp):
        with ddp.phase("preparation"):
            if ddp.rank == 0:
                time.sleep(5.5)
                logging.warning("halfway")
                time.sleep(1.2)
        dist.all_reduce(torch.ones(2))

    def test_plain():
        pass
"""


@dataclass(frozen=True)
class Watched:
    """What a terminal received, and what it showed."""

    raw: str
    screens: list[list[str]]
    """Non-empty lines of the screen after each piece of output."""

    @property
    def last(self) -> list[str]:
        return self.screens[-1]


def _watch(suite: Suite, *args: str, columns: int = 100, rows: int = 24) -> Watched:
    """Run pytest on a terminal of this size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = interpreter.start(
        ["-m", "pytest", "-p", "no:cacheprovider", "--color=no", *args],
        cwd=suite.directory,
        env=without_outer_run("COLUMNS", "LINES", "CI") | {"TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    screen = pyte.Screen(columns, rows)
    stream = pyte.Stream(screen)
    raw, screens = "", []
    deadline = time.monotonic() + _LIMIT
    with contextlib.suppress(OSError):  # the end of a pty
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            piece = os.read(master, 65536).decode()
            raw += piece
            stream.feed(piece)
            screens.append([text.rstrip() for text in screen.display if text.strip()])
    os.close(master)
    assert process.wait(10) == 0, raw
    return Watched(raw, screens)


def _suite(suite: Suite) -> Suite:
    suite.write("test_live.py", SOURCE)
    return suite


def _live_lines(watched: Watched) -> list[str]:
    return [text for screen in watched.screens for text in screen if text.startswith("ddp: ")]


def test_a_long_test_has_a_line_that_leaves_no_trace(suite: Suite) -> None:
    watched = _watch(_suite(suite), rows=5)  # so few that the terminal scrolls
    said = _live_lines(watched)
    assert said
    assert all("test_slow" in text for text in said), "the short test was over in time"
    assert any(
        "rank 0 in preparation" in text and "ranks 1-2 in all_reduce #1" in text for text in said
    ), said
    assert not [text for text in watched.last if "ddp: " in text and "plugins" not in text]
    assert any(text.startswith("test_live.py ...") for text in watched.last), watched.last
    for screen in watched.screens:
        assert sum(text.startswith("ddp: ") for text in screen) <= 1


def test_it_fits_a_narrow_terminal(suite: Suite) -> None:
    watched = _watch(_suite(suite), "-q", columns=40)
    said = _live_lines(watched)
    assert said
    assert all(len(text) < 40 for text in said)
    assert watched.last[0].startswith("...")


def test_verbose_lines_are_continued(suite: Suite) -> None:
    watched = _watch(_suite(suite), "-v")
    assert _live_lines(watched)
    [slow] = [text for text in watched.last if "::test_slow" in text]
    assert slow.startswith("test_live.py::test_slow PASSED")


def test_it_gives_way_to_live_logs(suite: Suite) -> None:
    watched = _watch(_suite(suite), "-o", "log_cli=true")
    [record] = [text for text in watched.last if "halfway" in text]
    assert record.startswith("WARNING  root:test_live.py:18 [rank 0] halfway")
    lines = [[text for text in screen if text.startswith("ddp: ")] for screen in watched.screens]
    assert max(map(len, lines)) == 1
    below = [screen[-1] for screen in watched.screens if record in screen]
    assert any(text.startswith("ddp: test_slow") for text in below)
    assert not lines[-1]


@pytest.mark.parametrize("args", [("-s",), ("-n", "2")], ids=" ".join)
def test_where_it_would_be_in_the_way_there_is_none(suite: Suite, args: tuple[str, ...]) -> None:
    watched = _watch(_suite(suite), *args)
    assert "| rank" not in watched.raw
    assert "ddp: test_slow" not in watched.raw


def test_there_is_none_without_a_terminal(suite: Suite) -> None:
    finished = _suite(suite).run()
    finished.assert_outcomes(passed=3)
    assert "ddp: test_slow" not in finished.output
    assert "\x1b" not in finished.output
