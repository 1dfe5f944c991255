"""The flight recorder is read only where a collective may be under way: full, it takes 30 ms."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.protocol.rank_status import GroupCount
from pytest_ddp.rank.groups.side_channel import SideChannel
from pytest_ddp.rank.status import status_reporter
from pytest_ddp.rank.status.status_reporter import StatusReporter

BEFORE = 7
"""Collectives that the group had seen in earlier tests."""


class Recorder:
    """torch's, with the number of times that it was read."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.reads = 0

    def __call__(self, *_: bool) -> bytes:
        self.reads += 1
        return pickle.dumps({"entries": self.entries})

    def note(self, number: int, *, retired: bool, group: str = "0", at: int = 2**62) -> None:
        collective = group, BEFORE + number, at
        self.entries = [
            entry
            for entry in self.entries
            if (entry["process_group"][0], entry["collective_seq_id"], entry["time_created_ns"])
            != collective
        ]
        self.entries.append(
            {
                "process_group": (group, "default_pg"),
                "collective_seq_id": BEFORE + number,
                "is_p2p": False,
                "time_created_ns": at,
                "retired": retired,
                "profiling_name": "gloo:all_reduce",
                "input_sizes": [[3]],
                "input_dtypes": ["Float"],
            }
        )


UNRECORDED = "of a backend that nobody knows"


class Group:
    """A default group, as far as a survey asks it."""

    def __init__(self) -> None:
        self.issued = {"0": 0}
        self.made: dict[str, int] = {}
        self.journal = SimpleNamespace(
            calls=[],
            forms=[],
            made=self.made,
            operations=SimpleNamespace(waiting={}),
            issued_before=lambda name: BEFORE,
            is_recorded=lambda name: name != UNRECORDED,
        )

    def counts(self) -> tuple[GroupCount, ...]:
        return tuple(GroupCount(name, (0, 1), n, 0, 0) for name, n in self.issued.items())


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(status_reporter, "_dump", recorder)
    monkeypatch.setattr(status_reporter, "is_initialized", lambda: True)
    return recorder


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def reporter(group: Any) -> StatusReporter:
    phase_stack: Any = SimpleNamespace(backwards=0)
    return StatusReporter(group, phase_stack, SideChannel())


def begun(reporter: StatusReporter) -> list[int]:
    return [wait.number for wait in reporter._issued()[0]]


def done(reporter: StatusReporter) -> list[int]:
    return [wait.number for wait in reporter._issued()[1]]


def test_a_test_without_collectives_reads_nothing(
    reporter: StatusReporter, recorder: Recorder
) -> None:
    assert begun(reporter) == []
    assert recorder.reads == 0


def test_what_is_complete_is_read_once(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    group.issued["0"] = 2
    recorder.note(1, retired=True)
    recorder.note(2, retired=True)
    assert [begun(reporter) for _ in range(3)] == [[], [], []]
    assert recorder.reads == 1
    group.issued["0"] = 3
    recorder.note(3, retired=False)
    assert [begun(reporter) for _ in range(3)] == [[3], [3], [3]]
    recorder.note(3, retired=True)
    assert [begun(reporter) for _ in range(3)] == [[], [], []]
    assert recorder.reads == 5


def test_the_last_complete_ones_are_reported_though_they_are_read_once(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    group.issued["0"] = 20
    for number in range(1, 21):
        recorder.note(number, retired=True)
    assert [done(reporter) for _ in range(2)] == [[*range(5, 21)]] * 2
    assert recorder.reads == 1
    reporter.begin()
    recorder.entries.clear()
    assert done(reporter) == []


def test_a_collective_that_has_its_number_and_no_record_yet_is_not_taken_for_complete(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    group.issued["0"] = 2
    recorder.note(1, retired=True)
    assert begun(reporter) == []
    recorder.note(2, retired=False)
    assert begun(reporter) == [2]


def test_a_new_group_s_collectives_are_seen(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    group.issued["0"] = 1
    recorder.note(1, retired=True)
    assert begun(reporter) == []
    group.issued["1"] = 1
    recorder.note(1, retired=False, group="1")
    assert begun(reporter) == [1]


def test_a_group_of_the_same_name_is_another_one(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    group.issued["0"] = 2
    recorder.note(2, retired=True)
    assert begun(reporter) == []
    group.made["0"] = 2**62 + 1
    recorder.note(2, retired=False, at=2**62 + 2)
    assert begun(reporter) == [2]


def test_what_its_namesake_had_complete_is_not_a_group_s_own(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    recorder.note(1, retired=True)
    group.made["0"] = 2**62 + 1
    group.issued["0"] = 1  # and no record yet
    assert begun(reporter) == []
    recorder.note(1, retired=False, at=2**62 + 2)
    assert begun(reporter) == [1]


def test_a_new_test_starts_anew(reporter: StatusReporter, group: Group, recorder: Recorder) -> None:
    group.issued["0"] = 1
    recorder.note(1, retired=True)
    assert begun(reporter) == []
    reporter.begin()
    recorder.note(1, retired=False)
    assert begun(reporter) == [1]


@pytest.mark.parametrize(
    ("waits", "state", "needed"), [(True, "S", True), (True, "R", False), (False, "S", False)]
)
def test_a_rank_that_will_go_on_by_itself_does_not_look(
    reporter: StatusReporter,
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    waits: bool,
    state: str,
    needed: bool,
) -> None:
    if waits:
        group.journal.operations.waiting[threading.main_thread().ident] = object()
    monkeypatch.setattr(status_reporter, "_activity", lambda: (state, ""))
    assert reporter._needs_issued(None) is needed


def test_a_rank_that_has_ended_its_test_shows_what_it_has_begun(
    reporter: StatusReporter,
) -> None:
    reporter.end()
    assert reporter._needs_issued(None)
    reporter.begin()
    assert not reporter._needs_issued(None)


def test_of_a_backend_without_records_nothing_is_concluded(
    reporter: StatusReporter, group: Group, recorder: Recorder
) -> None:
    group.issued[UNRECORDED] = 0
    recorder.note(1, group=UNRECORDED, retired=False)
    recorder.note(2, group=UNRECORDED, retired=True)
    assert reporter._issued() == ((), ())
