"""Both ends of a channel in one process, for tests of what passes between them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import Collected, World
from pytest_ddp.protocol.messages import Message, RankReady

WORLD = World("gloo", 2, None, init=True)


def long_message(length: int) -> Message:
    """One with a text of so many characters."""
    return Collected(("x" * length,), (), (), (), ())


READY = RankReady(serial=1, pid=4711, captured=("stdout", "stderr"))


BIG = long_message(1 << 20)
"""More than a socket takes at once."""


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


def frame(body: bytes, number: int = 0, length: int | None = None) -> bytes:
    """A frame as it lies on the wire: length, number, body."""
    return struct.pack(">IQ", len(body) if length is None else length, number) + body


def wire(*messages: Message) -> bytes:
    """The bytes of these messages."""
    with both() as ends:
        for message in messages:
            ends.controller.send(message)
        return ends.bare.recv(1 << 20)


def contents(descriptors: list[int]) -> list[str]:
    texts = []
    for descriptor in descriptors:
        with os.fdopen(descriptor) as file:
            texts.append(file.read())
    return texts
