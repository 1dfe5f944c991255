"""What ranks show at once: lines and records, whole, from streams that outlive the rank."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

import pytest

from pytest_ddp.launch.streams import LoggedPiece, LogSocket, NewPath, OutputPipe, Piece, Text
from pytest_ddp.protocol import log_records

PREFIX = "[rank 3] "


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


@pytest.mark.parametrize(
    ("written", "shown", "rest"),
    [
        (b"one\ntwo\n", "one|two", ""),
        (b"one\ntw", "one", "tw"),
        (b"\n\nlast\n", "||last", ""),
        (b"dos\r\nline\r\n", "dos|line", ""),
        (b"\r10%\r20%\r30%\n", "10%|20%|30%", ""),
        (b"\r10%\r20%\r", "10%", "20%"),
        (b"form\x0bfeed\x0c and \xe2\x80\xa8\n", "form\x0bfeed\x0c and \u2028", ""),
        (b"wrong \xff\n", "wrong \ufffd", ""),
    ],
)
def test_lines(written: bytes, shown: str, rest: str) -> None:
    for size in (1, 2, len(written)):
        output = OutputPipe("stdout", PREFIX)
        seen = ""
        for start in range(0, len(written), size):
            os.write(output.theirs, written[start : start + size])
            seen += text_of(output.read())
        assert seen == "".join(f"{PREFIX}{line}\n" for line in shown.split("|"))
        assert text_of(output.rest()) == (f"{PREFIX}{rest}\n" if rest else "")
        os.close(output.theirs)
        output.close()


def test_output_of_the_only_rank_is_as_it_came() -> None:
    output = OutputPipe("stderr", "")
    for piece in (b"\ra", b"", b"\xc3", b"\xa4b"):
        os.write(output.theirs, piece)
    assert text_of(output.read()) == "\raäb"
    assert text_of(output.read()) == ""
    ended = [output.at_end]
    os.close(output.theirs)
    output.read()
    assert [*ended, output.at_end] == [False, True]
    output.close()


@pytest.fixture
def log() -> Iterator[LogSocket]:
    made = LogSocket(3, PREFIX)
    yield made
    made.close()
    made.theirs.close()


def record(message: str, *args: object, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "args": args, "levelno": 20, **fields})


def send(log: LogSocket, made: logging.LogRecord) -> None:
    log_records.send(log.theirs, log_records.pack(made, "call", time.monotonic()))


def receive(log: LogSocket) -> logging.LogRecord:
    (piece,) = log.read()
    assert isinstance(piece, LoggedPiece)
    return piece.logged.record(piece.prefix)


@pytest.mark.parametrize("length", [0, 1, 65_000, 66_000, 1_000_000])
def test_a_record_of_any_length(log: LogSocket, length: int) -> None:
    send(log, record("%s and %d", "ä" * length, 2))
    assert receive(log).getMessage() == f"{PREFIX}{'ä' * length} and 2"
    assert log.read() == []


def test_a_percent_sign_is_none_of_a_format(log: LogSocket) -> None:
    send(log, record("100 %"))
    assert receive(log).getMessage() == f"{PREFIX}100 %"


class Odd:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_fields_travel(log: LogSocket) -> None:
    send(log, record("", trial=7, share=0.5, none=None, odd=Odd(), big=10**5000, of=int, on=True))
    seen = receive(log)
    values = {name: vars(seen)[name] for name in ("trial", "share", "none", "of", "on")}
    assert values == {"trial": 7, "share": 0.5, "none": None, "of": "<class 'int'>", "on": True}
    assert vars(seen)["odd"] == "<Odd whose str() raised ValueError('no text')>"
    assert str(vars(seen)["big"])


def test_an_exception_is_text(log: LogSocket) -> None:
    try:
        raise ValueError("the cause")
    except ValueError as error:
        send(log, record("failed", exc_info=(type(error), error, error.__traceback__)))
    shown = logging.Formatter("%(message)s").format(receive(log))
    assert shown.startswith(f"{PREFIX}failed\nTraceback (most recent call last):\n")
    assert shown.endswith("\nValueError: the cause")


def test_what_was_sent_is_there_after_the_end(log: LogSocket) -> None:
    send(log, record("last words"))
    log.theirs.close()
    assert receive(log).getMessage() == f"{PREFIX}last words"
    assert log.at_end


def test_much_is_read_in_parts(log: LogSocket) -> None:
    log.theirs.setblocking(False)
    sent = 0
    try:
        while True:
            send(log, record("much"))
            sent += 1
    except BlockingIOError:
        """The socket is full: a rank waits now."""
    read = 0
    while pieces := log.read():
        assert (log.behind is None) == (len(pieces) < 256)
        read += len(pieces)
    assert read == sent
    assert log.behind is None


@pytest.mark.parametrize("junk", [b"junk", b"7", b"[1]", b"\xff"])
def test_something_else_ends_the_stream(log: LogSocket, junk: bytes) -> None:
    log.theirs.send(junk)
    assert log.read() == []
    assert log.at_end


def test_a_new_file(log: LogSocket) -> None:
    log_records.send(log.theirs, log_records.LogPath(1.0, "some.log").packet())
    assert log.read() == [NewPath(1.0, 3, "some.log")]
