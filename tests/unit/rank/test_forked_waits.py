"""What forked processes wait in is read by the process that forked them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from pytest_ddp.protocol.rank_status import CodeLine, ForkedWait
from pytest_ddp.rank.groups.forked_waits import ForkedWaits
from pytest_ddp.rank.operations.operation import Description, Issuer, Operation, Site
from pytest_ddp.rank.operations.table import BY_NAME


def call(operation: str = "all_reduce") -> Operation:
    site = Site(call.__code__, 7)
    return Operation(
        None, "0", Description(BY_NAME[operation], operation, site=site), Issuer.PYTHON
    )


class Child:
    """A forked process that acts, writes when it has, and waits for its end."""

    def __init__(self, act: Callable[[], object]) -> None:
        acted, self._goes_on = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._goes_on[1])  # so that the read ends with the process that forked it
            act()
            os.write(acted[1], b".")
            os.read(self._goes_on[0], 1)
            os._exit(0)
        os.read(acted[0], 1)

    def end(self) -> None:
        """Kill the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def made() -> dict[str, int]:
    """Groups that exist when a process is forked."""
    return {}


@pytest.fixture
def waits(made: dict[str, int]) -> ForkedWaits:
    return ForkedWaits(made)


def test_wait_is_seen_until_it_ends_or_its_process_does(waits: ForkedWaits) -> None:
    def begins_and_ends() -> None:
        waits.begin(call("barrier"))
        waits.end()

    # First: the numbers of both may leave the same remainder, and its end removes the other's note.
    ends = Child(begins_and_ends)
    begins = Child(lambda: waits.begin(call()))
    seen = ForkedWait(f"process {begins.pid}", "all_reduce", CodeLine(__file__, 7))
    assert waits.living() == (seen,)
    ends.end()
    begins.end()
    assert waits.living() == ()


def test_notes_are_removed_for_the_next_test(waits: ForkedWaits) -> None:
    child = Child(lambda: waits.begin(call()))
    waits.clear()
    assert waits.living() == ()
    child.end()


def test_groups_made_before_the_fork_are_known_in_the_process(
    waits: ForkedWaits, made: dict[str, int]
) -> None:
    """The groups are known in a process that a forked process forks, too."""
    made["0"] = 1

    def notes_if_inherited() -> None:
        if waits.inherited == {"0"}:
            waits.begin(call())

    def forks() -> None:
        grandchildren.append(Child(notes_if_inherited))

    grandchildren: list[Child] = []
    child = Child(forks)
    assert len(waits.living()) == 1
    assert not waits.inherited
    child.end()


def test_half_a_note_is_none(waits: ForkedWaits) -> None:
    def writes_half() -> None:
        waits.begin(call())
        begin = os.getpid() % 16 * 1024
        waits._map[begin + 10] = 0

    child = Child(writes_half)
    assert waits.living() == ()
    child.end()
