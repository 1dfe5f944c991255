"""Events of a thread, and what is progress for a replay and for a poll."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pytest_ddp.extensions.explore.ranks.accesses import Access
from pytest_ddp.extensions.explore.ranks.recording import Recording, ThreadEvents
from tests.unit.extensions.explore.programs import changes


def _recording(problems: list[str] | None = None) -> Recording:
    report = ([] if problems is None else problems).append
    recording = Recording(1, 2, "/root/", None, report)
    recording.begin_thread(0)
    recording.is_on = True
    return recording


def test_points_are_numbered_by_thread_and_name() -> None:
    recording = _recording()

    def other() -> None:
        recording.begin_thread(recording.new_number())
        recording.point("open:x")
        recording.end_thread()
        recording.point("unseen")

    thread = threading.Thread(target=other)
    for name in ("open:x", "open:y", "open:x"):
        recording.point(name)
    thread.start()
    thread.join()
    assert [
        (number, [(point, which) for _, point, which, *_ in events])
        for number, events in recording.sent()
    ] == [(0, [("open:x", 1), ("open:y", 1), ("open:x", 2)]), (1, [("open:x", 1)])]


def test_what_a_point_uses_is_asked_after_the_hold() -> None:
    recording, steps = _recording(), list[str]()
    recording.on_point = lambda thread, name, number, arrive: steps.append(
        f"{thread} {name} {number}"
    )

    def uses() -> Iterator[Access]:
        steps.append("uses")
        yield changes("x")

    recording.point("open:x", uses)
    assert steps == ["0 open:x 1", "uses"]
    assert recording.sent()[0][1][0][4] == [changes("x")]


def test_points_of_the_plugin_itself_are_nobodys() -> None:
    recording = _recording()

    def uses() -> Iterator[Access]:
        recording.point("inner")
        yield from ()

    recording.point("outer", uses)
    recording.is_on = False
    recording.point("late")
    assert [row[1] for row in recording.sent()[0][1]] == ["outer"]


def test_a_mistake_in_a_point_is_reported_and_the_call_goes_on() -> None:
    problems: list[str] = []
    recording = _recording(problems)
    recording.point("open:x", lambda: [1 / 0])  # type: ignore[list-item]
    recording.point("open:y")
    assert len(problems) == 1
    assert "ZeroDivisionError" in problems[0]
    assert [row[1] for row in recording.sent()[0][1]] == ["open:y"]


def test_an_interrupt_while_held_is_the_users() -> None:
    recording = _recording()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    recording.on_point = interrupt
    with pytest.raises(KeyboardInterrupt):
        recording.point("open:x")
    assert recording.own() is not None


def test_rounds_of_a_poll_are_no_progress_and_changes_always_are() -> None:
    events = ThreadEvents(0)
    polled = [events.passes("stat:done", "t.py:3", changes=False) for _ in range(6)]
    assert polled == [True, True, False, False, False, False]
    assert (events.moves, events.again) == (2, 4)
    assert events.passes("open:done", "t.py:5", changes=False)
    assert (events.moves, events.again) == (3, 0)
    beats = [events.passes(*point, changes=True) for point in BEAT * 4]
    assert all(beats)
    assert events.again > 0


BEAT = (("open:beat", "t.py:8"), ("rename:beat", "t.py:9"))


def test_communication_is_progress_each_time() -> None:
    events = ThreadEvents(0)
    for _ in range(5):
        events.passes("stat:done", "t.py:3", changes=False)
        events.communicates()
    assert (events.moves, events.again) == (10, 0)
