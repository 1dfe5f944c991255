"""What of a machine lets ddp tests fail all alike, or hang: reported by pytest.

Each text ends with the way out. What the tests themselves say of it is gloo's, or a worker's that
nobody sees.
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
    """All that there are; none on nearly every machine."""
    return [text for text in (loopback_problem(), tempdir_problem()) if text]


def loopback_problem(interface: str = "lo") -> str:
    """Why ranks on the CPU cannot talk to each other; empty if they can, or if nobody knows."""
    if _may_be_up(interface):
        return ""
    return (
        f"the network interface {interface} is down or missing. gloo's ranks talk by it, so that "
        f'every test with a gloo process group ends with "Unable to find address for: {interface}".'
        f" Bring it up before pytest starts, as root: ip link set {interface} up"
    )


def _may_be_up(interface: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, _FLAGS.pack(interface.encode(), 0))
        except OSError as error:
            # A sandbox that forbids the question may have one all the same.
            return error.errno != errno.ENODEV
    return bool(_FLAGS.unpack(answer)[1] & _IFF_UP)


def tempdir_problem() -> str:
    """Why DataLoader workers hang; empty if they do not."""
    with contextlib.suppress(OSError):  # where there is no temporary directory, that is told
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
