"""Frames between controller, host and ranks: every message, whole and in pieces."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import socket
import struct
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.channel import Channel, ChannelError
from pytest_ddp.protocol import (
    Collect,
    Finish,
    Finished,
    KillRank,
    Message,
    PhaseReported,
    RankReady,
    RunTest,
    StartRank,
)
from tests.unit.standings import collective, standing, stuck

KINDS: tuple[type, ...] = typing.get_args(Message)
READY = RankReady(serial=1, pid=4711, captured=("stdout", "stderr"))


class Ends:
    """Both ends of a channel: the controller's and a rank's."""

    def __init__(self) -> None:
        self.controller, self.bare = Channel.pair()
        self.rank = Channel(self.bare)

    def hear(self) -> list[tuple[Message, list[int]]]:
        """What the controller's end has received."""
        return self.controller.receive_available()

    def write(self, raw: bytes) -> None:
        """Send bytes that no channel made."""
        self.bare.sendall(raw)

    def close(self) -> None:
        self.controller.close()
        self.rank.close()


@contextlib.contextmanager
def both() -> Iterator[Ends]:
    ends = Ends()
    try:
        yield ends
    finally:
        ends.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with both() as made:
        yield made


def frame(body: bytes, number: int = 0, length: int | None = None) -> bytes:
    """A frame as it lies on the wire: length, number, body."""
    return struct.pack(">IQ", len(body) if length is None else length, number) + body


# ------------------------------------------------------------------ every message


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters()),
    int: st.integers(),
    bool: st.booleans(),
    dict[str, str]: st.dictionaries(st.text(), st.text(), max_size=3),
    dict[str, Any]: st.dictionaries(st.text(), plain_json, max_size=3),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type. A type that messages do not use yet is an error."""
    if hint in SCALARS:
        return SCALARS[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if isinstance(hint, types.UnionType):
        return st.one_of(*map(values, arguments))
    if hint is type(None):
        return st.none()
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return records(hint)


def records(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(typing.cast("Any", kind))
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields})


def descriptors_of(message: Any) -> int:
    """How many descriptors belong to a message, by the protocol's own words."""
    if isinstance(message, StartRank):
        return 1
    if isinstance(message, RankReady):
        return len(message.captured)
    return int(isinstance(message, RunTest) and message.serve_store)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip_of_every_message(kind: type) -> None:
    @settings(deadline=None, max_examples=50)
    @given(records(kind))
    def check(message: Any) -> None:
        with both() as ends, Path(os.devnull).open() as file:
            ends.rank.send(message, [file.fileno()] * descriptors_of(message))
            ((received, descriptors),) = ends.hear()
            assert received == message
            assert type(received) is kind
            assert len(descriptors) == descriptors_of(message)
            for descriptor in descriptors:
                os.close(descriptor)

    check()


def test_tuples_in_records_in_tuples_come_back_as_such(ends: Ends) -> None:
    wait = collective(1, 0, 1)
    now = standing(wait, begun=(wait, wait))
    ends.rank.send(now)
    assert ends.hear() == [(now, [])]


def test_tuples_in_a_report_become_lists(ends: Ends) -> None:
    ends.rank.send(PhaseReported(1, {"location": ("a.py", 3, "test")}))
    assert ends.hear() == [(PhaseReported(1, {"location": ["a.py", 3, "test"]}), [])]


def test_what_json_does_not_know_travels_as_its_repr(ends: Ends) -> None:
    ends.rank.send(PhaseReported(1, {"user_properties": Path("/tmp/x")}))
    assert ends.hear() == [(PhaseReported(1, {"user_properties": repr(Path("/tmp/x"))}), [])]


def test_fields_that_a_newer_peer_knows_are_passed_over(ends: Ends) -> None:
    ends.write(frame(json.dumps({"kind": "KillRank", "serial": 3, "why": "new"}).encode()))
    assert ends.hear() == [(KillRank(3), [])]


# ------------------------------------------------------------------ pieces and order


def wire(*messages: Message) -> bytes:
    """The bytes of these messages."""
    with both() as ends:
        for message in messages:
            ends.controller.send(message)
        return ends.bare.recv(1 << 20)


THREE: tuple[Message, ...] = (KillRank(1), Collect(("a.py", "ä.py")), Finish())


def test_byte_by_byte(ends: Ends) -> None:
    raw = wire(*THREE)
    heard = []
    for position in range(len(raw)):
        ends.write(raw[position : position + 1])
        heard += [message for message, _ in ends.hear()]
    assert heard == list(THREE)


@settings(deadline=None)
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
    raw = wire(Collect(("x" * 1000,)))
    with socket.socket(fileno=os.dup(ends.controller.fileno())) as side:
        side.send(raw[:500])
        side.send(raw[500:])
    assert ends.rank.receive() == (Collect(("x" * 1000,)), [])


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
        ends.controller.send(StartRank(1, 0, "/tmp"), [file.fileno()])
    assert not ends.controller.unsent


def test_rank_learns_of_a_lost_controller(ends: Ends) -> None:
    ends.controller.close()
    with pytest.raises(BrokenPipeError):
        ends.rank.send(KillRank(1))


# ------------------------------------------------------------------ a peer that does not read


BIG = Collect(("x" * (1 << 20),))
"""More than a socket takes at once."""


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


def contents(descriptors: list[int]) -> list[str]:
    told = []
    for descriptor in descriptors:
        with os.fdopen(descriptor) as file:
            told.append(file.read())
    return told


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


# ------------------------------------------------------------------ what is no message


BROKEN = {
    "not JSON": b"\x80\x04\x95pickled",
    "not UTF-8": b'{"kind": "\xff"}',
    "cut short": b'{"kind": "Finish"',
    "a list": b"[1, 2]",
    "a number": b"3",
    "no kind": b'{"serial": 1}',
    "a kind that is none": b'{"kind": 3}',
    "a kind that is a list": b'{"kind": []}',
    "unknown kind": b'{"kind": "Nothing"}',
    "another name of the module": b'{"kind": "Json"}',
    "a record that is no message": b'{"kind": "GroupPlan", "backend": "gloo", "world_size": 1,'
    b' "devices": null, "store": ""}',
    "field missing": b'{"kind": "KillRank"}',
    "tuple is a number": b'{"kind": "Collect", "files": 3}',
    "unknown enum value": b'{"kind": "Exchange", "test": 1, "number": 1, "operation": "steal",'
    b' "source": null, "payload": ""}',
    "nested too deeply": b"[" * 100_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_broken_body(ends: Ends, body: bytes) -> None:
    ends.write(frame(body))
    with pytest.raises(ChannelError, match="no message of ours"):
        ends.hear()


def test_error_shows_how_the_body_begins(ends: Ends) -> None:
    ends.write(frame(b"Segmentation fault" + b"." * 1000))
    with pytest.raises(ChannelError, match="Segmentation fault") as error:
        ends.hear()
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("receive", [Channel.receive, Channel.receive_available])
def test_frame_out_of_order(ends: Ends, receive: Callable[[Channel], object]) -> None:
    ends.write(frame(b'{"kind":"Finish"}', number=7))
    with pytest.raises(ChannelError, match="frame 7 came where 0 was due"):
        receive(ends.controller)


def test_frame_that_comes_twice(ends: Ends) -> None:
    ends.write(wire(Finish()) * 2)
    with pytest.raises(ChannelError, match="frame 0 came where 1 was due"):
        ends.hear()


def test_text_in_the_stream_is_told_before_its_length_is_there(ends: Ends) -> None:
    ends.write(b"print() of a test that took our descriptor\n")
    with pytest.raises(ChannelError, match="was due"):
        ends.hear()


@pytest.mark.parametrize("sent", [0, 1])
def test_descriptors_that_did_not_come(ends: Ends, sent: int) -> None:
    raw = wire(READY)
    with Path(os.devnull).open() as file:
        socket.send_fds(ends.bare, [raw], [file.fileno()] * sent)
    with pytest.raises(ChannelError, match="RankReady came without its 2 descriptors"):
        ends.hear()


def test_stand_is_no_message() -> None:
    # What the prover works with never crosses a process.
    assert type(stuck()) not in KINDS
