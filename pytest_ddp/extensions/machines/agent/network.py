"""The network interface of this machine, by the address from which it reaches the coordinator."""

from __future__ import annotations

import fcntl
import struct

from pytest_ddp.system.stdlib import os, socket

_SIOCGIFADDR = 0x8915
_LONGEST = 15
_ADDRESS = slice(20, 24)
"""The bytes of the IPv4 address in the answer."""


def interface_of(address: str) -> str:
    """The interface with this IPv4 address; empty if there is none."""
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


def host_environment(address: str) -> dict[str, str]:
    """Network variables for hosts; values that the user has set stay."""
    interface = interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {name: os.environ.get(name, interface) for name in names if interface}
