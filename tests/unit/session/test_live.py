"""The words of the live line, and what stays of it on a screen: nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcome.outcome import Ending
from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.session import display
from pytest_ddp.session.display import LiveLine, activity_of, line
from tests.unit.standings import collective, standing


def test_ranks_that_do_the_same_are_reported_together() -> None:
    doing = {0: "in all_reduce #7", 1: "in forward", 2: "in forward", 3: "in forward"}
    expected = "ddp: test_x 12 s | rank 0 in all_reduce #7, ranks 1-3 in forward"
    assert line("test_x", 12.3, doing, 80) == expected


def test_a_long_name_gives_way_to_what_the_ranks_do() -> None:
    seen = line("test_" + "x" * 100, 12, {0: "in barrier #2"}, 60)
    assert len(seen) == 60
    assert seen.endswith("x... 12 s | rank 0 in barrier #2")


@given(
    st.text(),
    st.floats(0, 1e6),
    st.dictionaries(st.integers(0, 63), st.text(max_size=30)),
    st.integers(1, 200),
)
def test_it_fits_and_moves_no_cursor(
    name: str, seconds: float, doing: dict[int, str], width: int
) -> None:
    seen = line(name, seconds, doing, width)
    assert len(seen) <= width
    assert seen.isascii()
    assert seen.isprintable()


@pytest.mark.parametrize(
    ("ending", "words"),
    [(Ending.DONE, "ended"), (Ending.EXITED, "died"), (None, "does not answer")],
)
def test_ranks_without_a_standing(ending: Ending | None, words: str) -> None:
    assert activity_of(ending, None) == words


def test_a_rank_that_waits_is_in_its_collective() -> None:
    stand = standing(collective(7, 0, 1))
    assert activity_of(None, stand) == "in all_reduce #7"


LINE = CodeLine("/src/test_made.py", 12, "f")


@pytest.mark.parametrize(
    ("phase", "place", "words"),
    [
        (("call", "step 3", "backward"), LINE, "in step 3: backward"),
        (("call",), LINE, "at test_made.py:12"),
        (("setup",), None, "in setup"),
    ],
)
def test_a_rank_that_works_is_in_its_phase(
    phase: tuple[str, ...], place: CodeLine | None, words: str
) -> None:
    assert activity_of(None, standing(phase=phase, place=place)) == words


class Terminal:
    """pytest's writer, on a file."""

    fullwidth = 80
    width_of_current_line = 14

    def __init__(self) -> None:
        self._file: TextIO = io.StringIO()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr("pytest_ddp.system.stdlib.time.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def test_a_short_test_has_no_line(clock: Callable[[float], None]) -> None:
    terminal = Terminal()
    shown = LiveLine(terminal)
    shown.begin("test_x")
    clock(4.9)
    shown.show({0: "in forward"})
    shown.erase()
    assert isinstance(terminal._file, io.StringIO)
    assert terminal._file.getvalue() == ""
    assert shown.due_in() == float("inf")


def test_it_is_rewritten_once_a_second(clock: Callable[[float], None]) -> None:
    terminal = Terminal()
    shown = LiveLine(terminal)
    shown.begin("test_x")
    for _ in range(30):
        clock(0.25)
        shown.show({0: "in forward"})
    assert isinstance(terminal._file, io.StringIO)
    assert terminal._file.getvalue().count("\r") == 3, "at 5, 6 and 7 s"
    assert 0 < shown.due_in() <= display._INTERVAL


def test_without_a_terminal_nothing_is_due(clock: Callable[[float], None]) -> None:
    shown = LiveLine(None)
    shown.begin("test_x")
    clock(60)
    shown.show({0: "in forward"})
    shown.erase()
    assert shown.due_in() == float("inf")
