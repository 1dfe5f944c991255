"""Messages that this extension adds to those of the core."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_ddp.extensions.adopt.ranks import served_messages
from pytest_ddp.extensions.adopt.ranks.served_messages import (
    BeginWatch,
    Inherit,
    Proved,
    Serve,
    Watch,
)
from pytest_ddp.outcome.outcome import Hang, HangKind, RankLine, RootCause
from pytest_ddp.protocol.channel import dumps, loads, restored
from pytest_ddp.protocol.messages import EXTENSION_KINDS
from tests.unit.protocol.test_channel_messages import round_trip
from tests.unit.standings import code_line

KINDS = [kind for kind in EXTENSION_KINDS.values() if kind.__module__ == served_messages.__name__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip_of_every_message(kind: type) -> None:
    round_trip(kind)


def test_descriptors_are_counted_by_the_message() -> None:
    assert Serve({}, 0o22).descriptor_count == 11
    assert Inherit((5, 9, 7), last=True).descriptor_count == 3
    assert BeginWatch(60.0).descriptor_count == 1
    assert Watch(4711).descriptor_count == 3


def test_a_hang_is_the_same_after_its_message() -> None:
    row = RankLine(
        0, "waits", ("target",), "barrier #1", code_line("test_it.py:3 in test_it"), "0", 1
    )
    hang = Hang(HangKind.FOR_ENDED, "rank 0 waits", (1,), (row,), RootCause((1,)), "Is it late?")
    message = loads(dumps(Proved(dataclasses.asdict(hang), (4711,), (None,))))
    assert isinstance(message, Proved)
    assert restored(Hang, message.hang) == hang
