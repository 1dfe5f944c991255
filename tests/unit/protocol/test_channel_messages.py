"""Every message as a frame, and frames that are none."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import socket
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.protocol.channel import Channel, ChannelError, is_kind, loads
from pytest_ddp.protocol.host_messages import KillRank, StartRank
from pytest_ddp.protocol.messages import (
    ExtensionMessage,
    Finish,
    Message,
    PhaseReported,
    RankReady,
    RunTest,
    TerminalReply,
)
from tests.unit.ends import READY, Ends, both, frame, wire
from tests.unit.standings import collective, standing, stuck

KINDS = [kind for kind in typing.get_args(Message) if kind is not ExtensionMessage]
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
    float: st.floats(allow_nan=False),
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
        return 8 + message.serve_store
    if isinstance(message, RankReady):
        return len(message.captured)
    if isinstance(message, ExtensionMessage):
        return message.descriptor_count
    if isinstance(message, TerminalReply):
        return 3 if message.refusal is None else 0
    return message.serve_store + message.by_file if isinstance(message, RunTest) else 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip_of_every_message(kind: type) -> None:
    round_trip(kind)


def round_trip(kind: type) -> None:
    """Send messages of a kind, and see that they come as they were."""

    @settings(max_examples=50)
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


@dataclasses.dataclass
class OfUser:
    value: int


@pytest.mark.parametrize("value", [Path("/tmp/x"), OfUser(1), {2}])
def test_what_json_does_not_know_travels_as_its_repr(ends: Ends, value: object) -> None:
    ends.rank.send(PhaseReported(1, {"user_properties": value}))
    assert ends.hear() == [(PhaseReported(1, {"user_properties": repr(value)}), [])]


def test_fields_that_a_newer_peer_knows_are_passed_over(ends: Ends) -> None:
    ends.write(frame(json.dumps({"kind": "KillRank", "serial": 3, "why": "new"}).encode()))
    assert ends.hear() == [(KillRank(3), [])]


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
    "a record that is no message": b'{"kind": "World", "backend": "gloo", "world_size": 1,'
    b' "devices": null, "init": true}',
    "field missing": b'{"kind": "KillRank"}',
    "tuple is a number": b'{"kind": "Collected", "files": 3, "conftests": [], "path": [],'
    b' "places": []}',
    "unknown enum value": b'{"kind": "Exchange", "test": 1, "number": 1, "operation": "steal",'
    b' "source": null, "payload": ""}',
    "nested too deeply": b"[" * 100_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_broken_body(ends: Ends, body: bytes) -> None:
    ends.write(frame(body))
    with pytest.raises(ChannelError, match="not a message of the protocol"):
        ends.hear()


def test_error_shows_how_the_body_begins(ends: Ends) -> None:
    ends.write(frame(b"Segmentation fault" + b"." * 1000))
    with pytest.raises(ChannelError, match="Segmentation fault") as error:
        ends.hear()
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("receive", [Channel.receive, Channel.receive_available])
def test_frame_out_of_order(ends: Ends, receive: Callable[[Channel], object]) -> None:
    ends.write(frame(b'{"kind":"Finish"}', number=7))
    with pytest.raises(ChannelError, match="frame 7 arrived, expected 0"):
        receive(ends.controller)


def test_frame_that_comes_twice(ends: Ends) -> None:
    ends.write(wire(Finish()) * 2)
    with pytest.raises(ChannelError, match="frame 0 arrived, expected 1") as error:
        ends.hear()
    assert [message for message, _ in error.value.before] == [Finish()]


def test_text_in_the_stream_is_reported_before_its_length_is_there(ends: Ends) -> None:
    ends.write(b"print() of a test that took our descriptor\n")
    with pytest.raises(ChannelError, match="expected"):
        ends.hear()


@pytest.mark.parametrize("sent", [0, 1])
def test_descriptors_that_did_not_come(ends: Ends, sent: int) -> None:
    raw = wire(READY)
    with Path(os.devnull).open() as file:
        socket.send_fds(ends.bare, [raw], [file.fileno()] * sent)
    with pytest.raises(ChannelError, match="RankReady arrived without its 2 descriptors"):
        ends.hear()


def test_stand_is_no_message() -> None:
    # What the prover works with never crosses a process.
    assert type(stuck()) not in KINDS


def test_a_message_is_passed_on_as_it_came(ends: Ends) -> None:
    """Who passes the message on knows its kind alone, and takes its descriptors."""
    with both() as onward, Path(os.devnull).open() as file:
        ends.rank.send(READY, [file.fileno()] * 2)
        ends.rank.send(Finish())
        first, second = ends.controller.receive_bodies()
        assert is_kind(RankReady, first)
        assert not is_kind(RankReady, second)
        taken = ends.controller.take_descriptors(loads(first))
        onward.rank.send_body(first, taken)
        onward.rank.send_body(second)
        (ready, descriptors), finish = onward.hear()
        assert [ready, finish] == [READY, (Finish(), [])]
        assert [os.readlink(f"/proc/self/fd/{one}") for one in descriptors] == [os.devnull] * 2
        for descriptor in (*taken, *descriptors):
            os.close(descriptor)


def test_frames_before_one_out_of_order_are_passed_on(ends: Ends) -> None:
    ends.write(wire(Finish()) + frame(b"{}", number=7))
    with pytest.raises(ChannelError, match="frame 7 arrived, expected 1") as error:
        ends.controller.receive_bodies()
    assert error.value.before == [b'{"kind":"Finish"}']
