"""The rank that acts first, of those that are about to change something."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, Queue

import pytest
from ddp_conformance import Writer
from ddp_conformance.writing import checks
from ddp_conformance.writing.arriving import Arriving, Pending, next_to_act, waits_for_another
from ddp_conformance.writing.mutants.writers import RemovesWhatIsThere, lines

from pytest_ddp import Ddp
from pytest_ddp.system.frames import current_frames


def held(path: str, *acted: str) -> Pending:
    return Pending((path,), acted, len(acted))


@pytest.mark.parametrize(
    ("ranks", "ahead", "chosen"),
    [
        ({0: held("a"), 1: held("a")}, False, 0),
        # Rank 0 has removed it and is about to make it anew: rank 1 comes too late before that.
        ({0: held("a", "a"), 1: held("a")}, False, 1),
        ({0: held("b", "a"), 1: held("a")}, True, 1),
        # Folders are one with what is in them.
        ({0: held("runs/first", "runs"), 1: held("runs")}, False, 1),
        # Of those that change different things, who has done least; so both come to the next look.
        ({0: held("shared", "own0"), 1: held("own1")}, False, 1),
        # Or rank 0, which comes to what rank 1 is about to do after some changes of its own.
        ({0: held("own0", "own0b"), 1: held("shared")}, True, 0),
        # One that tries again waits for what another one does first.
        ({0: held("state", "lock"), 1: held("lock", "lock")}, False, 0),
        ({2: held("a"), 3: held("b"), 4: held("b")}, False, 3),
    ],
)
def test_who_is_next(ranks: dict[int, Pending], ahead: bool, chosen: int) -> None:
    assert next_to_act(ranks, ahead) == chosen


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("slow", [0, 1])
def test_none_goes_on_before_the_others_have_acted(
    ddp: Ddp, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 makes the second file at once, and rank 1 would remove that one: none would raise.

    The slow rank acts some time after it has got its turn.
    """
    take_turn = Arriving.take_turn

    def take_turn_and_act_later(arriving: Arriving, paths: tuple[str, ...]) -> None:
        take_turn(arriving, paths)
        if ddp.rank == slow:
            time.sleep(0.05)

    monkeypatch.setattr(checks, "RECORDS", 2)
    monkeypatch.setattr(Arriving, "take_turn", take_turn_and_act_later)
    found = checks.find_several_writers(Writer(RemovesWhatIsThere, records=lines), ddp)
    (one,) = found
    assert one.what.startswith("rank 1 raises where another rank was first: ")


def _an_item() -> None:
    with suppress(Empty):
        Queue[int]().get(timeout=0.3)


def _a_result(end: threading.Event) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(end.wait).result()


@pytest.mark.parametrize(
    ("act", "waits"),
    [
        (lambda end: end.wait(), True),
        (lambda end: Queue[int]().join() or end.wait(), True),
        (_a_result, True),
        (lambda end: end.wait(timeout=0.3), False),
        (lambda _: time.sleep(0.3), False),
        (lambda _: _an_item(), False),
    ],
    ids=["event", "queue and event", "result", "event for a while", "sleep", "queue for a while"],
)
def test_a_wait_for_another_thread_is_no_wait_for_some_time(
    act: Callable[[threading.Event], object], waits: bool
) -> None:
    """Looked at in the wait alone, until it is seen or the thread has ended."""
    waiting = {threading.Condition.wait.__code__, act.__code__}
    end = threading.Event()
    thread = threading.Thread(target=act, args=(end,))
    give_up = threading.Timer(60, end.set)
    thread.start()
    give_up.start()
    seen = False
    while not seen and thread.is_alive():
        frame = current_frames().get(thread.ident or 0)
        seen = frame is not None and frame.f_code in waiting and waits_for_another(frame)
        time.sleep(0.001)
    give_up.cancel()
    end.set()
    thread.join()
    assert seen == waits
