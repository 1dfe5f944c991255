"""A program that stands in for ``python`` where neither a test nor pytest starts it.

An engine's processes start agents: Ray's worker, or the daemon behind ``srun``. They find a program
that hands all it is given to the warm interpreter, and lives as long as what that makes of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.warm import interpreter
from tests.warm.server import receive

_PROGRAM = """#!{python} -IS
import json, os, socket, struct, sys

channel = socket.socket(socket.AF_UNIX)
channel.connect({place!r})
request = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
data = json.dumps(request).encode()
socket.send_fds(channel, [struct.pack("!Q", len(data))], [0, 1, 2])
channel.sendall(data)
code = channel.recv(9).decode()
if code == "fresh":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""

_PEER = struct.Struct("3i")
"""Process, user and group at the other end, as the kernel reports them."""


@contextlib.contextmanager
def standing_in() -> Iterator[Path]:
    """Have such a program for a block; what it starts is on the machine that it is on."""
    with (
        tempfile.TemporaryDirectory(prefix="ddpp-") as folder,
        socket.socket(socket.AF_UNIX) as door,
    ):
        place, program = Path(folder, "door"), Path(folder, "python")
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
    threads = []
    with contextlib.suppress(OSError):  # the end of the block
        while True:
            channel, _ = door.accept()
            threads.append(threading.Thread(target=_be, args=(channel,)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _be(channel: socket.socket) -> None:
    """Start what one program was asked for; it ends with that, and is killed with it."""
    with channel:
        received = receive(channel)
        assert received is not None
        request, descriptors = received
        try:
            if not interpreter.is_warm(request["env"]):
                channel.sendall(b"fresh")
                return
            peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            process = interpreter.start_beside(
                _PEER.unpack(peer)[0],
                request["argv"],
                cwd=request["cwd"],
                env=request["env"],
                descriptors=descriptors,
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        watch = os.pidfd_open(process.pid)
        ready, _, _ = select.select([channel, watch], [], [])
        os.close(watch)
        if channel in ready:
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        with contextlib.suppress(OSError):
            channel.sendall(str(code).encode())
