"""Entry points of agents: the coordinator starts that of its own machine, engines start the
others."""

from __future__ import annotations

import fcntl
import struct
import sys
from typing import Any, NoReturn

from pytest_ddp.extensions.machines.agent import agent_gpus
from pytest_ddp.extensions.machines.agent.agent import Agent
from pytest_ddp.extensions.machines.agent_connection import connect
from pytest_ddp.extensions.machines.engines.engine import LAUNCHER_VARIABLES, SECRET
from pytest_ddp.extensions.machines.engines.torchrun import Torchrun
from pytest_ddp.extensions.machines.handshake import SealError
from pytest_ddp.protocol.host_messages import PLACE_VARIABLES
from pytest_ddp.system.stdlib import os, signal, socket, time

_FAILED = 1
_REACH_LIMIT = 120.0
"""Seconds until the coordinator must listen, if no store signals that it does."""
_BETWEEN_TRIES = 0.2


def main(role: dict[str, Any]) -> NoReturn:
    """Run the agent of the coordinator's own machine."""
    secret = os.environ.pop(SECRET)
    sys.exit(live(role["node"], role["address"], role["port"], secret.encode()))


def be_agent(torchrun: Torchrun) -> int:
    """Run the agent of a node other than 0 until pytest ends there; return its exit code."""
    users_secret = os.environ.pop(SECRET, "")
    for name in (*PLACE_VARIABLES, *LAUNCHER_VARIABLES):
        # These describe the launcher's processes, not the ranks.
        os.environ.pop(name, None)
    try:
        address, port, secret = torchrun.find(users_secret)
    except (OSError, RuntimeError) as error:
        return complain(torchrun.node, f"node 0 did not publish the address of pytest: {error}")
    place = torchrun.node, address, port, secret
    return live(*place, nodes=torchrun.nodes, spread=torchrun.spread)


def live(
    node: int,
    address: str,
    port: int,
    secret: bytes,
    *,
    nodes: int | None = None,
    lifeline: int | None = None,
    spread: float = 0.0,
) -> int:
    """Run an agent until pytest ends; return the exit code.

    Args:
        node: the number of this machine.
        address: the address at which the coordinator listens.
        port: the coordinator's port.
        secret: the session's secret.
        nodes: the number of nodes by this machine's launcher; None without a launcher.
        lifeline: a descriptor that the starter of this agent holds open as long as the agent is to
            live; None if there is none.
        spread: seconds by which node 0 may start later.
    """
    # pytest on node 0 decides what Ctrl-C means. Not SIG_IGN, which ranks would inherit: their
    # fixtures would be cut off, and a test that interrupts itself would pass.
    signal.signal(signal.SIGINT, lambda *_: None)
    # Ray's workers block SIGINT, and the mask is inherited as well.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Before the connection, which would be silent for as long as this takes.
    agent_gpus.found()
    deadline = time.monotonic() + _REACH_LIMIT + spread
    while True:
        try:
            line = connect(address, port, secret)
            break
        except SealError as error:
            return complain(
                node, f"{address}:{port} is not the coordinator of this session: {error}"
            )
        except OSError as error:
            # If a starter holds a lifeline, the coordinator listens already. Other agents may start
            # before node 0, or before its address can be resolved.
            if lifeline is not None or time.monotonic() > deadline:
                return complain(node, _unreached(address, port, error))
            signal.sigtimedwait([], _BETWEEN_TRIES)
    agent = Agent(line, node, nodes, _host_environment(line.own_address), lifeline)
    code = agent.live()
    if agent.refused:
        complain(node, f"pytest on node 0 refuses this machine: {agent.refused}")
    if agent.gone and node:
        complain(node, f"pytest on node 0 is gone: {agent.gone}")
    return code


def _unreached(address: str, port: int, error: OSError) -> str:
    words = f"cannot reach node 0 at {address}:{port}: {error}"
    return f"{words}; MASTER_ADDR, set for pytest, names another address of it"


def complain(node: int, text: str) -> int:
    """Print why an agent ends; return its exit code."""
    print(f"pytest-ddp agent of node {node}: {text}", file=sys.stderr)
    return _FAILED


def main_by_stdin(role: dict[str, Any]) -> NoReturn:
    """Run the agent that ``role`` describes, on a machine where an engine has started it.

    It has read the role from stdin, by ``engines/sending.py``: every user of the machine can read a
    command line, and the role has a secret. It ends when its stdin is closed, which is when its
    starter has ended.
    """
    os.environ.update(role["environment"])
    node = role["node"]
    try:
        os.chdir(role["folder"])
    except OSError as error:
        sys.exit(complain(node, f"pytest's folder does not exist here: {error}"))
    secret = role["secret"].encode()
    sys.exit(live(node, role["address"], role["port"], secret, lifeline=sys.stdin.fileno()))


# ------------------------------------------------------------------ the network interface

_SIOCGIFADDR = 0x8915
_LONGEST = 15
_ADDRESS = slice(20, 24)
"""The bytes of the IPv4 address in the answer."""


def _interface_of(address: str) -> str:
    """Find the interface by which this machine has an IPv4 address; return "" if there is none."""
    packed = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_LONGEST])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no address
            if answer[_ADDRESS] == packed:
                return name
    return ""


def _host_environment(address: str) -> dict[str, str]:
    """Return network variables for hosts; values that the user has set stay."""
    interface = _interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {name: os.environ.get(name, interface) for name in names if interface}
