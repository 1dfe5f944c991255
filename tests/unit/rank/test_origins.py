"""The place of a thread, as another thread reads it: whole, and the user's line first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from pytest_ddp.rank.operations import origins
from pytest_ddp.rank.operations.origins import callers, stack_of
from pytest_ddp.rank.status.phase_stack import place_of

TORCHS = """
def through_a_generator(function):
    return next(function() for _ in range(1))
"""


def torchs() -> Callable[[Callable[[], Any]], Any]:
    """A function of torch's, by its file, that calls another one within a generator."""
    names: dict[str, Any] = {}
    exec(compile(TORCHS, f"{torch.__path__[0]}/made_up.py", "exec"), names)
    made: Callable[[Callable[[], Any]], Any] = names["through_a_generator"]
    return made


def test_user_line_outlives_the_end_of_a_generator() -> None:
    def look() -> tuple[FrameType, list[FrameType]]:
        # From torch's frame on: this one is the user's already.
        return sys._getframe(1), stack_of(threading.get_ident())[1:]

    frame, stack = torchs()(look)
    assert str(place_of(callers(frame))).startswith(f"{torch.__path__[0]}/made_up.py")
    assert "test_origins.py" in str(place_of(stack))


def test_wrapper_of_torchs_collectives_is_no_users_code() -> None:
    """ddp_conformance is not below site-packages in a source checkout."""
    names: dict[str, Any] = {}
    file = "/home/me/checkout/ddp_conformance/lockstep/lockstep.py"
    exec(compile(TORCHS, file, "exec"), names)
    place = names["through_a_generator"](lambda: place_of(callers(sys._getframe(1))))
    assert "test_origins.py" in str(place)


def test_stack_is_read_whole_while_its_thread_goes_on() -> None:
    go_on = True

    def deep(calls: int) -> int:
        return sum(deep(calls - 1) for _ in range(2)) if calls else 1

    def work() -> None:
        while go_on:
            deep(5)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        outermost = {stack_of(thread.ident)[-1].f_code.co_name for _ in range(10_000)}
    finally:
        go_on = False
        sys.setswitchinterval(before)
        thread.join()
    assert outermost == {"_bootstrap"}


def test_frames_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit hook of Python lets other threads run there: later, it would cut the stack off."""
    asked: list[int] = []

    def frames() -> dict[int, Any]:
        asked.append(1)
        return sys._current_frames()

    monkeypatch.setattr(origins, "_current_frames", frames)
    assert len(stack_of(threading.get_ident())) > 1
    assert asked == [1]


def test_stack_is_that_of_the_callers() -> None:
    stack = stack_of(threading.get_ident())
    here = stack.index(sys._getframe())
    assert stack[here:] == list(callers(sys._getframe()))


def test_a_thread_that_is_gone_has_none() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert stack_of(thread.ident) == []
    assert place_of(stack_of(thread.ident)) is None


def test_a_generator_that_goes_on_has_its_callers() -> None:
    def lines() -> Iterator[str]:
        yield str(place_of(stack_of(threading.get_ident())))

    assert "test_origins.py" in next(lines())
