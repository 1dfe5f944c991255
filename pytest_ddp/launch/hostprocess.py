"""The host's process, as whoever starts it on a machine knows it."""

from __future__ import annotations

from typing import IO, Any

from pytest_ddp.launch.rendezvous import HOST_ENVIRONMENT, NOT_FOR_HOST
from pytest_ddp.system.folder import Folder
from pytest_ddp.system.own import os, socket, subprocess
from pytest_ddp.wire.program import command


def start_host(
    theirs: socket.socket,
    folder: Folder,
    log: IO[bytes] | None,
    environment: dict[str, str] = HOST_ENVIRONMENT,
) -> subprocess.Popen[bytes]:
    """Start a host; it imports torch while others go on.

    Args:
        theirs: its end of its channel, which is closed here.
        folder: the session's.
        log: takes what it prints; None for the terminal.
        environment: variables beside those of this process.
    """
    role = {"descriptor": theirs.fileno(), "folder": folder.path}
    output: Any = log
    theirs_to_see = {k: v for k, v in os.environ.items() if k not in NOT_FOR_HOST}
    with theirs:
        return subprocess.Popen(
            command(role),
            env=theirs_to_see | environment,
            pass_fds=[theirs.fileno(), *folder.held],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # The terminal's Ctrl-C must not reach the host before its ranks have
            # torn down.
            start_new_session=True,
        )
