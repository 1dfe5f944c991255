"""Frames between controller, host and ranks, whole and in pieces, and the end of a peer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.protocol.host_messages import Collected, ImportedModules, KillRank, StartRank
from pytest_ddp.protocol.messages import Finish, Finished, Message
from tests.unit.ends import BIG, READY, WORLD, Ends, both, contents, long_message, wire

# ------------------------------------------------------------------ pieces and order


THREE: tuple[Message, ...] = (
    KillRank(1),
    Collected(("a.py", "ä.py"), (), ("/src",), (), (ImportedModules("a.py", ("ä", "b")),)),
    Finish(),
)


def test_byte_by_byte(ends: Ends) -> None:
    raw = wire(*THREE)
    heard = []
    for position in range(len(raw)):
        ends.write(raw[position : position + 1])
        heard += [message for message, _ in ends.hear()]
    assert heard == list(THREE)


@given(st.lists(st.integers(1, 100), max_size=8))
def test_pieces_of_any_size(cuts: list[int]) -> None:
    raw = wire(*THREE)
    heard = []
    with both() as ends:
        position = 0
        for size in [*cuts, len(raw)]:
            if raw[position : position + size]:
                ends.write(raw[position : position + size])
            position += size
            heard += [message for message, _ in ends.hear()]
    assert heard == list(THREE)


def test_blocking_end_waits_for_the_whole_of_a_frame(ends: Ends) -> None:
    raw = wire(long_message(1000))
    with socket.socket(fileno=os.dup(ends.controller.fileno())) as side:
        side.send(raw[:500])
        side.send(raw[500:])
    assert ends.rank.receive() == (long_message(1000), [])


def test_messages_that_come_together_are_received_one_by_one(ends: Ends) -> None:
    for message in THREE:
        ends.controller.send(message)
    more = [ends.rank.has_message]
    for message in THREE:
        assert ends.rank.receive() == (message, [])
        more.append(ends.rank.has_message)
    assert more == [False, True, True, False]


def test_part_of_a_message_is_no_message(ends: Ends) -> None:
    raw = wire(KillRank(1), KillRank(2))
    with socket.socket(fileno=os.dup(ends.controller.fileno())) as side:
        side.send(raw[:-1])
    assert ends.rank.receive() == (KillRank(1), [])
    assert not ends.rank.has_message


def test_more_waits_for_the_next_message(ends: Ends) -> None:
    ends.rank.send(KillRank(1), more=True)
    assert ends.hear() == []
    assert ends.rank.unsent
    ends.rank.send(KillRank(2))
    assert ends.hear() == [(KillRank(1), []), (KillRank(2), [])]
    assert not ends.rank.unsent


def test_flush_sends_what_waits_for_more(ends: Ends) -> None:
    ends.rank.send(KillRank(1), more=True)
    ends.rank.flush()
    assert ends.hear() == [(KillRank(1), [])]


# ------------------------------------------------------------------ the end of the peer


def test_last_words_are_heard_with_the_end(ends: Ends) -> None:
    ends.rank.send(Finished(None))
    ends.rank.close()
    assert ends.hear() == [(Finished(None), [])]
    assert ends.controller.at_end


def test_controller_end_before_the_end_of_the_peer(ends: Ends) -> None:
    assert ends.hear() == []
    assert not ends.controller.at_end


def test_blocking_end_returns_none_at_the_end(ends: Ends) -> None:
    ends.controller.send(KillRank(1))
    ends.controller.close()
    assert ends.rank.receive() == (KillRank(1), [])
    assert ends.rank.receive() is None


def test_end_in_the_middle_of_a_frame(ends: Ends) -> None:
    ends.write(wire(Finish())[:-1])
    ends.rank.close()
    assert ends.hear() == []
    assert ends.controller.at_end


def test_end_with_unread_bytes_is_an_end(ends: Ends) -> None:
    # The kernel answers the read with ECONNRESET then.
    ends.controller.send(KillRank(1))
    ends.rank.close()
    assert ends.hear() == []
    assert ends.controller.at_end


def test_controller_send_to_a_lost_rank_is_no_error(ends: Ends) -> None:
    ends.rank.close()
    ends.controller.send(KillRank(1))
    assert not ends.controller.unsent


def test_controller_send_of_descriptors_to_a_lost_peer_is_no_error(ends: Ends) -> None:
    ends.rank.close()
    with Path(os.devnull).open() as file:
        ends.controller.send(StartRank(1, 0, WORLD, {}, ""), [file.fileno()])
    assert not ends.controller.unsent


def test_rank_learns_of_a_lost_controller(ends: Ends) -> None:
    ends.controller.close()
    with pytest.raises(BrokenPipeError):
        ends.rank.send(KillRank(1))


# ------------------------------------------------------------------ a peer that does not read


def test_peer_that_does_not_read_blocks_nobody(ends: Ends) -> None:
    for _ in range(8):
        ends.controller.send(BIG)
    assert ends.controller.unsent
    assert not ends.controller.has_message


def take_all(ends: Ends, count: int) -> list[tuple[Message, list[int]]]:
    """Let the rank read while the controller flushes, as its poll would."""
    ends.bare.setblocking(False)
    heard: list[tuple[Message, list[int]]] = []
    while len(heard) < count:
        heard += ends.rank.receive_available()
        ends.controller.flush()
    return heard


def test_what_did_not_fit_arrives_whole_and_in_order(ends: Ends) -> None:
    messages: list[Message] = [KillRank(0), BIG, KillRank(1), BIG, KillRank(2)]
    for message in messages:
        ends.controller.send(message)
    assert take_all(ends, len(messages)) == [(message, []) for message in messages]
    assert not ends.controller.unsent


def test_descriptors_behind_unsent_bytes_block_nobody(ends: Ends, tmp_path: Path) -> None:
    ends.controller.send(BIG)
    files = [tmp_path / name for name in ("one", "two", "three", "four")]
    for file in files:
        file.write_text(file.name)
    for pair in (files[:2], files[2:]):
        with pair[0].open() as first, pair[1].open() as second:
            ends.controller.send(READY, [first.fileno(), second.fileno()])
    ends.controller.send(BIG)
    assert ends.controller.unsent
    assert not os.get_blocking(ends.controller.fileno())

    heard = take_all(ends, 4)
    assert [message for message, _ in heard] == [BIG, READY, READY, BIG]
    assert [contents(descriptors) for _, descriptors in heard] == [
        [],
        ["one", "two"],
        ["three", "four"],
        [],
    ]


def test_blocking_end_stays_blocking(ends: Ends) -> None:
    with Path(os.devnull).open() as file:
        ends.rank.send(KillRank(1), more=True)
        ends.rank.send(READY, [file.fileno()] * 2)
    assert os.get_blocking(ends.rank.fileno())
    for _, descriptors in ends.hear():
        for descriptor in descriptors:
            os.close(descriptor)


def test_unsent_is_dropped_when_the_rank_is_lost(ends: Ends) -> None:
    ends.controller.send(BIG)
    with Path(os.devnull).open() as file:
        ends.controller.send(READY, [file.fileno()])
    ends.rank.close()
    ends.controller.flush()
    assert not ends.controller.unsent
