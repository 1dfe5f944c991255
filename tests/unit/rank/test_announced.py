"""What stands in the place of a function adds no frame, and passes for the function."""

from __future__ import annotations

import copy
import inspect
import pickle
from sys import _getframe
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from pytest_ddp.rank.status.landmarks import TransparentWrapper

CALLS: list[str] = []


def _begin(instance: Any, caller: FrameType) -> Any:
    CALLS.append(f"{type(instance).__name__} from {caller.f_code.co_name}")
    return lambda: CALLS.append("end")


def function(a: int, *, b: int = 2) -> tuple[int, str]:
    """Its words."""
    CALLS.append("call")
    return a // b, _getframe(1).f_code.co_name


class Thing:
    def __init__(self, a: int) -> None:
        self.seen = a, _getframe(1).f_code.co_name

    def method(self, a: int) -> tuple[Thing, int, str]:
        return self, a, _getframe(1).f_code.co_name


original, function = function, TransparentWrapper(function, _begin)
Thing.__init__ = TransparentWrapper(Thing.__init__, _begin)  # type: ignore[method-assign]
Thing.method = TransparentWrapper(Thing.method, _begin)  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def calls() -> list[str]:
    CALLS.clear()
    return CALLS


def test_a_call_is_announced_and_sees_its_caller(calls: list[str]) -> None:
    name = "test_a_call_is_announced_and_sees_its_caller"
    assert function(6, b=3) == (2, name)
    assert calls == [f"NoneType from {name}", "call", "end"]


def test_the_end_of_a_call_that_raises_is_reported_before_anybody_handles_it(
    calls: list[str],
) -> None:
    try:
        function(1, b=0)
    except ZeroDivisionError as error:
        assert calls[-1] == "end"
        code = error.__traceback__.tb_next.tb_frame.f_code  # type: ignore[union-attr]
        assert code is original.__code__
    assert calls[-2:] == ["call", "end"]


def test_methods_know_their_instance(calls: list[str]) -> None:
    name = "test_methods_know_their_instance"
    thing = Thing(3)
    assert thing.seen == (3, name)
    assert thing.method(4) == (thing, 4, name)
    assert calls == [f"Thing from {name}", "end"] * 2
    assert Thing.method(thing, 5) == (thing, 5, name)
    assert calls[-2:] == [f"NoneType from {name}", "end"]


def test_super_finds_it(calls: list[str]) -> None:
    class Special(Thing):
        def __init__(self) -> None:
            super().__init__(7)

    assert Special().seen == (7, "__init__")
    assert calls == ["Special from __init__", "end"]


def test_a_begin_without_an_end() -> None:
    assert TransparentWrapper(original, lambda *_: None)(4) == (2, "test_a_begin_without_an_end")


def test_it_passes_for_the_function() -> None:
    assert inspect.isfunction(function)
    assert inspect.signature(function) == inspect.signature(original)
    assert (function.__name__, function.__doc__) == ("function", "Its words.")
    assert function.__code__ is original.__code__
    assert inspect.getsource(function) == inspect.getsource(original)
    assert str(inspect.signature(Thing)) == "(a: 'int') -> 'None'"
    assert inspect.ismethod(Thing(1).method)
    assert copy.deepcopy(function) is function
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(Thing(1).method))(2)[1] == 2


def test_a_mock_by_its_specification_binds_as_a_method_does() -> None:
    thing = Thing(1)
    with mock.patch.object(Thing, "method", autospec=True) as method:
        thing.method(2)
    method.assert_called_once_with(thing, 2)
    assert thing.method(3)[1] == 3
