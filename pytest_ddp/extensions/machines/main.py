"""Entry point of the coordinator's process."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NoReturn

from pytest_ddp.extensions.machines import handshake
from pytest_ddp.extensions.machines.agent_connection import AgentListener
from pytest_ddp.extensions.machines.coordinator import Coordinator
from pytest_ddp.extensions.machines.engines.engine import (
    SECRET,
    Engine,
    EngineError,
    MeetingPoint,
    from_role,
)
from pytest_ddp.extensions.machines.machine_messages import MachinesAwaited, MachinesFound, Unfit
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.program import command
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os, socket, subprocess

_AGENT = "pytest_ddp.extensions.machines.agent.main"
_LAST_WAIT = 14.0
"""Seconds that the agent of this machine gets to end its ranks and itself."""


def main(role: dict[str, Any]) -> NoReturn:
    """Be the coordinator of the machines of the engine that ``role`` describes."""
    sock = socket.socket(fileno=role["descriptor"])
    sock.setblocking(False)
    channel = Channel(sock)
    engine = from_role(role["engine"])
    users_secret = os.environ.pop(SECRET, "")
    with contextlib.ExitStack() as end:
        try:
            listener = _listen(channel, engine, users_secret or handshake.new_secret())
            # Agents that connect before the coordinator serves wait in the backlog.
            own = _start_agent(listener)
            end.callback(own.kill)
            end.callback(engine.end)
            place = listener.address, listener.port, listener.secret
            engine.bring(MeetingPoint(*place, bool(users_secret)))
        except EngineError as error:
            channel.send(Unfit(str(error)))
        except (OSError, RuntimeError) as error:
            channel.send(Unfit(f"node 0 cannot reach the others: {error}"))
        else:
            # Only now: processes that were started before inherit the user's own limit.
            tempfiles.raise_to_hard_limit()
            Coordinator(channel, engine, listener).serve()
            with contextlib.suppress(subprocess.TimeoutExpired):
                own.wait(_LAST_WAIT)
    tempfiles.remove(role["folder"])
    sys.exit(0)


def _listen(channel: Channel, engine: Engine, secret: str) -> AgentListener:
    address, port = engine.listens_at(lambda what: channel.send(MachinesAwaited(what)))
    channel.send(MachinesFound(engine.nodes))
    try:
        return AgentListener(address, port, secret, engine.nodes)
    except OSError as error:
        raise EngineError(f"node 0 cannot listen for the others at {address}: {error}") from error


def _start_agent(listener: AgentListener) -> subprocess.Popen[bytes]:
    """Start the agent of node 0, which connects as the others do."""
    role = {"node": 0, "address": listener.address, "port": listener.port}
    return subprocess.Popen(
        command(role, _AGENT),
        env=os.environ | {SECRET: listener.secret},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
