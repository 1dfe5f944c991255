"""Faults of a machine by which all ddp tests fail, or hang; pytest reports them.

Each text ends with a remedy. The tests' own errors would only be gloo's, or those of a worker,
which are not shown.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import struct

from pytest_ddp.system import folder
from pytest_ddp.system.own import os, socket, tempfile

_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_FLAGS = struct.Struct("16sH22x")
"""``struct ifreq``: the name of a network interface, and its flags."""


def problems() -> list[str]:
    """All faults of this machine; nearly always none."""
    return [text for text in (loopback_problem(), tempdir_problem()) if text]


def loopback_problem(interface: str = "lo") -> str:
    """Why ranks on the CPU cannot communicate; empty if they can, or if it is unknown."""
    if _may_be_up(interface):
        return ""
    return (
        f"the network interface {interface} is down or missing. gloo needs it: every test with a "
        f'gloo process group ends with "Unable to find address for: {interface}".'
        f" Bring it up before pytest starts, as root: ip link set {interface} up"
    )


def _may_be_up(interface: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _FLAGS.pack(interface.encode(), 0))
        except OSError as error:
            # A sandbox that forbids this call may have the interface all the same.
            return error.errno != errno.ENODEV
    return bool(_FLAGS.unpack(answer)[1] & _IFF_UP)


def tempdir_problem() -> str:
    """Why DataLoader workers would hang; empty if they would not."""
    with contextlib.suppress(OSError):  # a missing temporary directory is reported elsewhere
        directory = tempfile.gettempdir()
        length = len(os.fsencode(directory))
        if length > folder.LONGEST_TEMPDIR:
            return (
                f"the temporary directory has a path of {length} characters, and at most "
                f"{folder.LONGEST_TEMPDIR} leave room for the sockets of multiprocessing in it "
                '("AF_UNIX path too long"): DataLoader workers of ddp tests will hang. Set TMPDIR '
                f"to a shorter one before pytest starts, such as /tmp. It is {directory}"
            )
    return ""
