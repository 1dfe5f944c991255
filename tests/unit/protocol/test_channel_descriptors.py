"""Descriptors that travel with messages."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pytest_ddp.protocol.host_messages import KillRank
from pytest_ddp.protocol.messages import RankReady
from tests.unit.ends import BIG, READY, Ends, contents, wire

# ------------------------------------------------------------------ descriptors


def test_descriptor_is_a_copy_of_the_same_file(ends: Ends, tmp_path: Path) -> None:
    written = tmp_path / "stdout"
    with written.open("w") as out, (tmp_path / "stderr").open("w") as err:
        ends.rank.send(READY, [out.fileno(), err.fileno()])
    ((_, descriptors),) = ends.hear()
    os.write(descriptors[0], b"hello")
    assert written.read_text() == "hello"
    for descriptor in descriptors:
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_descriptors_stay_with_their_message(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    ends.rank.send(KillRank(1), more=True)
    with (tmp_path / "one").open() as file:
        ends.rank.send(RankReady(1, 2, ("stdout",)), [file.fileno()])
    ends.rank.send(KillRank(2))
    heard = ends.hear()
    assert [len(descriptors) for _, descriptors in heard] == [0, 1, 0]
    assert contents(heard[1][1]) == ["one"]


def test_close_closes_what_nobody_took(ends: Ends) -> None:
    reading, writing = os.pipe()
    raw = wire(READY)
    socket.send_fds(ends.bare, [raw[:-1]], [writing, writing])
    os.close(writing)
    assert ends.hear() == []
    ends.controller.close()
    assert_closed(reading)


@pytest.mark.parametrize("ending", ["close", "loss"])
def test_close_closes_what_was_not_sent(ends: Ends, ending: str) -> None:
    reading, writing = os.pipe()
    ends.controller.send(BIG)
    ends.controller.send(READY, [writing, writing])
    os.close(writing)
    if ending == "close":
        ends.controller.close()
    else:
        ends.rank.close()
        ends.controller.flush()
    assert_closed(reading)


def assert_closed(reading: int) -> None:
    """Every copy of the pipe's other end is closed."""
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_sender_keeps_no_copy_of_what_it_sent(ends: Ends) -> None:
    reading, writing = os.pipe()
    ends.rank.send(RankReady(1, 2, ("stdout",)), [writing])
    os.close(writing)
    ((_, descriptors),) = ends.hear()
    os.close(descriptors[0])
    assert_closed(reading)


def test_channel_ends_are_not_inherited(ends: Ends) -> None:
    assert not os.get_inheritable(ends.controller.fileno())
    assert not os.get_inheritable(ends.rank.fileno())
