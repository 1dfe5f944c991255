"""What of a rank's files goes to the coordinator, and when."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_ddp.extensions.machines.agent.local_ranks import LocalRank
from pytest_ddp.protocol.host_messages import StartRank, World


@pytest.fixture
def rank() -> Iterator[LocalRank]:
    world = World("gloo", 2, None, init=False, nodes=(0, 1))
    rank = LocalRank(StartRank(7, 1, world, {}, ""))
    yield rank
    rank.passed_on()
    rank.close()


def sent(rank: LocalRank, *, all_: bool = False, page: bool = True) -> list[tuple[int, bytes]]:
    return [(frame.part, frame.data) for frame in rank.left(all_=all_, page=page)]


def test_a_file_is_sent_when_it_has_changed(rank: LocalRank) -> None:
    assert sent(rank) == []
    os.pwrite(rank.files.faults, b"a stack", 0)
    os.pwrite(rank.files.page, b"a phase", 0)
    assert sent(rank) == [(0, b"a stack"), (2, b"a phase")]
    assert sent(rank) == []
    os.pwrite(rank.files.page, b"another", 0)
    assert sent(rank) == [(2, b"another")]


def test_a_page_that_is_not_asked_for_is_sent_later(rank: LocalRank) -> None:
    os.pwrite(rank.files.faults, b"a stack", 0)
    os.pwrite(rank.files.page, b"a phase", 0)
    assert sent(rank, page=False) == [(0, b"a stack")]
    assert sent(rank) == [(2, b"a phase")]


def test_a_test_that_begins_has_all_sent_anew(rank: LocalRank) -> None:
    os.pwrite(rank.files.faults, b"of the last test", 0)
    os.pwrite(rank.files.page, b"a phase", 0)
    sent(rank)
    rank.begin()
    assert sent(rank) == [(2, b"a phase")]
