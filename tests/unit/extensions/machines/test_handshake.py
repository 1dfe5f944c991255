"""Who is let in, and that nothing is read of others; with the bytes that strangers send."""

from __future__ import annotations

import struct

import pytest

from pytest_ddp.extensions.machines.handshake import (
    ANSWER,
    GREETING,
    LONGEST,
    MAGIC,
    ClientHandshake,
    Seal,
    SealError,
    ServerHandshake,
)

SECRET = b"of this session"


def sealed(ours: bytes = SECRET, theirs: bytes = SECRET) -> tuple[Seal, Seal]:
    """The ends of coordinator and agent."""
    gate = ServerHandshake(ours)
    knock = ClientHandshake(theirs, gate.greeting)
    let_in = gate.open(knock.answer)
    assert let_in is not None
    welcome, coordinator = let_in
    return coordinator, knock.open(welcome)


def test_both_sides_read_what_the_other_has_sent() -> None:
    coordinator, agent = sealed()
    assert agent.open(
        coordinator.close(b"a") + coordinator.close(b"") + coordinator.close(b"c" * 100_000)
    ) == [
        b"a",
        b"",
        b"c" * 100_000,
    ]
    assert coordinator.open(agent.close(b"back")) == [b"back"]


def test_frames_come_in_any_pieces() -> None:
    coordinator, agent = sealed()
    data = coordinator.close(b"first") + coordinator.close(b"second")
    assert [body for i in range(len(data)) for body in agent.open(data[i : i + 1])] == [
        b"first",
        b"second",
    ]


def test_a_hub_with_another_secret_is_refused() -> None:
    gate = ServerHandshake(SECRET)
    knock = ClientHandshake(SECRET, gate.greeting)
    with pytest.raises(SealError, match="the listener has another session secret"):
        knock.open(bytes(32))


@pytest.mark.parametrize(
    "greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", MAGIC, b"x" * GREETING, MAGIC + bytes(17)]
)
def test_who_greets_otherwise_is_no_coordinator(greeting: bytes) -> None:
    with pytest.raises(SealError, match="no pytest-ddp"):
        ClientHandshake(SECRET, greeting)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: scanner\r\n\r\n",
        bytes(ANSWER),
        struct.pack(">I", 1 << 30) + bytes(ANSWER),
        b"\xff" * (1 << 20),
    ],
)
def test_a_stranger_is_refused_at_the_first_bytes_too_many(said: bytes) -> None:
    with pytest.raises(SealError):
        ServerHandshake(SECRET).open(said)


def test_a_stranger_that_sends_little_is_neither_let_in_nor_parsed() -> None:
    assert ServerHandshake(SECRET).open(b"GET /") is None


def test_a_proof_is_of_one_connection() -> None:
    """Who has listened to another connection cannot use what was sent there."""
    first, second = ServerHandshake(SECRET), ServerHandshake(SECRET)
    knock = ClientHandshake(SECRET, first.greeting)
    assert first.open(knock.answer) is not None
    with pytest.raises(SealError):
        second.open(knock.answer)


@pytest.mark.parametrize("place", [0, 4, 19, 20, 24])
def test_a_changed_byte_breaks_the_connection(place: int) -> None:
    coordinator, agent = sealed()
    frame = bytearray(coordinator.close(b"verdict") + coordinator.close(b"x" * 100))
    frame[place] ^= 1
    of_a_longer_length = bytes(1 << 25)
    with pytest.raises(SealError):
        agent.open(bytes(frame) + of_a_longer_length)


def test_a_frame_that_comes_again_breaks_it() -> None:
    coordinator, agent = sealed()
    frame = coordinator.close(b"once")
    assert agent.open(frame) == [b"once"]
    with pytest.raises(SealError, match="was changed on the way"):
        agent.open(frame)


def test_a_frame_that_was_left_out_breaks_it() -> None:
    coordinator, agent = sealed()
    coordinator.close(b"lost")
    with pytest.raises(SealError, match="was changed on the way"):
        agent.open(coordinator.close(b"next"))


def test_a_frame_sent_back_breaks_it() -> None:
    coordinator, _ = sealed()
    with pytest.raises(SealError, match="was changed on the way"):
        coordinator.open(coordinator.close(b"mine"))


def test_a_length_that_is_none_of_ours_is_refused_before_its_bytes_come() -> None:
    coordinator, _ = sealed()
    with pytest.raises(SealError, match="longer than any of pytest-ddp"):
        coordinator.open(struct.pack(">I", LONGEST + 1) + bytes(16))
