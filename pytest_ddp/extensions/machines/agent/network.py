"""The network of this machine, by the address that it reaches the hub from."""

from __future__ import annotations

import fcntl
import struct

from pytest_ddp.system.stdlib import os, socket

_SIOCGIFADDR = 0x8915
_LONGEST = 15
_ADDRESS = slice(20, 24)
"""Where the answer has an IPv4 address."""


def interface_of(address: str) -> str:
    """The interface that has this IPv4 address; empty if none has."""
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_LONGEST])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no address
            if answer[_ADDRESS] == wanted:
                return name
    return ""


def host_environment(address: str) -> dict[str, str]:
    """What hosts need to know of the network; what the user has set stays."""
    interface = interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {name: os.environ.get(name, interface) for name in names if interface}
