"""What is handled: in a thread, in the coroutine that awaits a thread, and first in the chain."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_ddp.rank.operations.origins import stack_of
from pytest_ddp.rank.status.handled import handled_beside, handled_in

Look = Callable[[], None]


def fail() -> None:
    raise ValueError("label 17")


def from_another(look: Look) -> None:
    try:
        try:
            fail()
        except ValueError as error:
            raise RuntimeError("training failed") from error
    except RuntimeError:
        look()


def in_a_handler(look: Look) -> None:
    try:
        try:
            fail()
        finally:
            dict[str, int]()["label"]
    except KeyError:
        look()


def from_none(look: Look) -> None:
    try:
        try:
            fail()
        except ValueError:
            raise RuntimeError("training failed") from None
    except RuntimeError:
        look()


def nested_groups(look: Look) -> None:
    try:
        try:
            fail()
        except ValueError as error:
            raise ExceptionGroup("outer", [ExceptionGroup("inner", [error])]) from None
    except ExceptionGroup:
        look()


def except_star(look: Look) -> None:
    try:
        fail()
    except* ValueError:
        look()


def a_cycle(look: Look) -> None:
    first, second = ValueError("label 17"), RuntimeError("training failed")
    first.__cause__ = second
    try:
        raise second from first
    except RuntimeError:
        look()


def kept(look: Look) -> None:
    with contextlib.suppress(ValueError):
        fail()
    look()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (from_another, "RuntimeError: training failed, raised after ValueError: label 17"),
        (in_a_handler, "KeyError: 'label', raised after ValueError: label 17"),
        (from_none, "RuntimeError: training failed"),
        (nested_groups, "ValueError: label 17"),
        (except_star, "ValueError: label 17"),
        (a_cycle, "RuntimeError: training failed"),
        (kept, "None"),
    ],
)
def test_chain(function: Callable[[Look], None], words: str) -> None:
    found = []
    function(lambda: found.append(str(handled_in(threading.get_ident()))))
    assert found == [words]


async def in_finally(wait: Callable[[], Any]) -> None:
    try:
        fail()
    finally:
        await wait()


async def after_the_handler(wait: Callable[[], Any]) -> None:
    error: Exception
    try:
        fail()
    except ValueError as found:
        error = found
    await wait()
    raise error


async def within(wait: Callable[[], Any]) -> None:
    await wait()


async def in_a_coroutine_that_awaits_another(wait: Callable[[], Any]) -> None:
    try:
        fail()
    except ValueError:
        await within(wait)


@pytest.mark.parametrize("way", ["to_thread", "executor", "sleep"])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (in_finally, "ValueError: label 17"),
        (in_a_coroutine_that_awaits_another, "ValueError: label 17"),
        (after_the_handler, "None"),
    ],
)
def test_coroutine(function: Callable[[Any], Any], words: str, way: str) -> None:
    main, found, looked = threading.get_ident(), list[str](), threading.Event()

    def look() -> None:
        while way != "sleep" and "/selectors.py" not in stack_of(main)[0].f_code.co_filename:
            time.sleep(0.001)
        found.append(str(handled_beside((), stack_of(main))))
        looked.set()

    async def waits_for_a_thread() -> None:
        if way == "to_thread":
            await asyncio.to_thread(look)
        elif way == "executor":
            await asyncio.get_running_loop().run_in_executor(None, look)
        else:
            threading.Timer(0.05, look).start()
            while not looked.is_set():
                await asyncio.sleep(0.001)

    with contextlib.suppress(ValueError):
        asyncio.run(function(waits_for_a_thread))
    assert found == ["None" if way == "sleep" else words]


def test_thread_of_an_executor() -> None:
    waits, goes_on = threading.Event(), threading.Event()
    idents: list[int] = []

    def work() -> None:
        try:
            fail()
        finally:
            idents.append(threading.get_ident())
            waits.set()
            goes_on.wait()

    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(work)
        waits.wait()
        found = handled_beside(idents, ())
        goes_on.set()
        assert isinstance(begun.exception(), ValueError)
    assert found is not None
    assert (found.words, found.first) == ("ValueError: label 17", None)
    assert found.place.function == "fail"
