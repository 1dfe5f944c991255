"""Starts the process of a host, or of what a launcher has in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from pytest_ddp.launch.rendezvous import HOST_ENVIRONMENT, NOT_FOR_HOST
from pytest_ddp.protocol.program import OF_RANKS, command
from pytest_ddp.system.stdlib import os, socket, subprocess
from pytest_ddp.system.tempfiles import SessionFolder


def start_host(
    theirs: socket.socket,
    folder: SessionFolder,
    log: IO[bytes] | None,
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a host; it imports torch while this process goes on.

    Args:
        theirs: its end of its channel, which is closed here.
        folder: the session's folder.
        log: file for its output; None for the terminal.
        environment: variables beside those of this process and of every host; None for no others.
        prefix: a command that runs the host in its own process, such as ``("nice", "-n", "5")``.
    """
    inherited = {k: v for k, v in os.environ.items() if k not in NOT_FOR_HOST}
    variables = inherited | HOST_ENVIRONMENT | dict(environment or {})
    return start(OF_RANKS, {}, theirs, folder, log, variables, prefix)


def start(
    program: str,
    settings: dict[str, Any],
    theirs: socket.socket,
    folder: SessionFolder,
    log: IO[bytes] | None,
    environment: Mapping[str, str],
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that serves this session, apart from the terminal.

    Args:
        program: the module with its ``main``.
        settings: its arguments beside its channel and the session's folder.
        theirs: its end of its channel, which is closed here.
        folder: the session's folder.
        log: file for its output; None for the terminal.
        environment: its environment variables.
        prefix: a command that runs it in its own process.
    """
    role = {"descriptor": theirs.fileno(), "folder": folder.path} | settings
    with theirs:
        return subprocess.Popen(
            [*prefix, *command(role, program)],
            env=environment,
            pass_fds=[theirs.fileno(), *folder.held],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # The terminal's Ctrl-C must not reach the host before its ranks have
            # torn down.
            start_new_session=True,
        )
