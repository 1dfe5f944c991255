"""A program that stands in for ``python`` in a job, and hands what it is given to a warm one.

A shell starts it, which cannot fork a warm interpreter itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.warm import interpreter
from tests.warm.server import receive

_PROGRAM = """#!{python} -IS
import json, os, socket, struct, sys

channel = socket.socket(socket.AF_UNIX)
channel.connect({place!r})
told = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
data = json.dumps(told).encode()
socket.send_fds(channel, [struct.pack("!Q", len(data))], [0, 1, 2])
channel.sendall(data)
sys.exit(int(channel.recv(9)))
"""


@contextlib.contextmanager
def standing_in(folder: Path) -> Iterator[Path]:
    """Have such a program in this folder for a block; one of it runs at a time."""
    place, program = folder / "door", folder / "warm-python"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place))
        door.listen()
        program.write_text(_PROGRAM.format(python=sys.executable, place=str(place)))
        program.chmod(0o755)
        thread = threading.Thread(target=_serve, args=(door,))
        thread.start()
        try:
            yield program
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(door: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the end of the block
        while True:
            channel, _ = door.accept()
            with channel:
                received = receive(channel)
                assert received is not None
                _run(channel, *received)


def _run(channel: socket.socket, told: dict[str, Any], descriptors: list[int]) -> None:
    stdin, stdout, stderr = descriptors
    process = interpreter.start(
        told["argv"],
        cwd=Path(told["cwd"]),
        env=told["env"],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    for descriptor in descriptors:
        os.close(descriptor)
    channel.sendall(str(process.wait()).encode())
