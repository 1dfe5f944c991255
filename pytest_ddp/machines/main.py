"""Entry point of the hub's process."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from pytest_ddp.machines import torchrun
from pytest_ddp.machines.door import Door
from pytest_ddp.machines.hub import Hub
from pytest_ddp.machines.torchrun import SECRET, Place
from pytest_ddp.system import folder
from pytest_ddp.system.own import os, socket, subprocess
from pytest_ddp.wire.channel import Channel
from pytest_ddp.wire.machines import Unfit
from pytest_ddp.wire.program import command

_AGENT = "pytest_ddp.agent.main"
_LAST_WAIT = 3.0
"""Seconds for the agent of this machine to end its ranks and itself."""


def main(role: dict[str, Any]) -> NoReturn:
    """Be the hub of the node that ``role`` describes."""
    sock = socket.socket(fileno=role["descriptor"])
    users_secret = os.environ.pop(SECRET, "")
    place = Place(**role["place"])
    try:
        secret = torchrun.secret_of(users_secret)
        address = place.own_address()
        door = Door(address, 0 if place.has_store else place.port, secret.encode())
        torchrun.tell_where(place, address, door.port, secret, is_users=bool(users_secret))
        # Not before: that imports torch, and nobody opens the door meanwhile.
        own = _start_agent(door, secret)
    except (OSError, RuntimeError) as error:
        Channel(sock).send(
            Unfit(f"node 0 cannot listen for the others at {place.address}: {error}")
        )
        sys.exit(1)
    sock.setblocking(False)
    Hub(Channel(sock), place, door).serve()
    try:
        own.wait(_LAST_WAIT)
    except subprocess.TimeoutExpired:
        own.kill()
    folder.remove(role["folder"])
    sys.exit(0)


def _start_agent(door: Door, secret: str) -> subprocess.Popen[bytes]:
    """That of node 0, which comes in by the door as the others do."""
    role = {"node": 0, "address": door.address, "port": door.port}
    return subprocess.Popen(
        command(role, _AGENT),
        env=os.environ | {SECRET: secret},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
