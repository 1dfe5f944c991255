"""What of a remote rank reaches the launcher, in which order."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pytest_ddp.extensions.machines import rank_proxy as module
from pytest_ddp.extensions.machines.rank_proxy import LOG, RankProxy
from pytest_ddp.launch.rank_process import RankFiles
from pytest_ddp.launch.streams import LoggedPiece, Streams, Text
from pytest_ddp.protocol.channel import Channel, dumps
from pytest_ddp.protocol.host_messages import RankExited
from pytest_ddp.protocol.messages import Began, RankReady


@dataclass
class Ends:
    """Both sides of one rank: the launcher's, and its proxy."""

    channel: Channel
    files: RankFiles
    streams: Streams
    proxy: RankProxy


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = Channel.pair()
    files, streams = RankFiles(), Streams(1, 2)
    given = (theirs.fileno(), *files.descriptors, *streams.descriptors)
    proxy = RankProxy(1, [os.dup(descriptor) for descriptor in given])
    theirs.close()
    streams.passed_on()
    yield Ends(ours, files, streams, proxy)
    proxy.close()
    ours.close()
    files.close()
    streams.close()


def test_files_hold_what_the_rank_s_hold(ends: Ends) -> None:
    ends.proxy.keep(0, b"a long stack")
    ends.proxy.keep(0, b"a stack")
    ends.proxy.keep(1, b"of a child")
    assert ends.files.stacks() == "a stack"
    assert ends.files.stacks_of_children() == "of a child"


def test_capture_files_come_with_ready(ends: Ends) -> None:
    ends.proxy.send(dumps(RankReady(3, 4711, ("stdout", "stderr"))).encode())
    ((ready, captured),) = ends.channel.receive_available()
    assert ready == RankReady(3, 4711, ("stdout", "stderr"))
    ends.proxy.keep(5, b"last words")
    assert os.pread(captured[1], 100, 0) == b"last words"
    for descriptor in captured:
        os.close(descriptor)


def test_more_output_than_a_pipe_holds_comes_whole(ends: Ends) -> None:
    out = ends.streams.sources[0]
    ends.proxy.write(0, b"\n" * 300_000)
    lines, rounds = 0, 0
    while pieces := out.read():
        lines += sum(piece.text.count("\n") for piece in pieces if isinstance(piece, Text))
        rounds += ends.proxy.unsent
        ends.proxy.flush()
    assert lines == 300_000
    assert rounds > 1


def test_a_record_has_the_time_of_this_machine(ends: Ends) -> None:
    before = time.monotonic()
    ends.proxy.write(LOG, json.dumps((1e12, "call", {"msg": "of afar"})).encode())
    (record,) = ends.streams.sources[2].read()
    assert isinstance(record, LoggedPiece)
    assert before <= record.moment <= time.monotonic()


def test_an_end_is_sent_after_all_else(ends: Ends) -> None:
    for number in range(20_000):
        ends.proxy.channel.send(Began(number), more=True)
    ends.proxy.exited = RankExited(3, 0)
    assert not ends.proxy.flush()
    heard = []
    while not ends.proxy.flush():
        heard += ends.channel.receive_available()
    heard += ends.channel.receive_available()
    assert len(heard) == 20_000


def test_a_closed_channel_is_seen_a_little_later(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.proxy.hang_up()
    ends.proxy.flush()
    assert ends.channel.receive_available() == []
    assert not ends.channel.at_end
    monkeypatch.setattr(module, "_DEATH_LIMIT", -1.0)
    ends.proxy.hang_up()
    ends.proxy.flush()
    assert ends.channel.receive_available() == []
    assert ends.channel.at_end


def test_what_nobody_reads_any_more_is_dropped(ends: Ends) -> None:
    ends.streams.close()
    ends.proxy.write(0, b"for nobody")
    ends.proxy.write(LOG, json.dumps((1.0, "call", {})).encode())
    assert not ends.proxy.unsent
