"""What puts a fork in the place of a fresh interpreter: files, namespaces, what ``/proc`` shows."""

from __future__ import annotations

import ctypes
import fcntl
import os
import runpy
import subprocess
from collections.abc import Mapping, Sequence

_NEW_NETWORK, _NEW_MOUNTS, _NEW_NAME = 0x40000000, 0x00020000, 0x04000000
"""``CLONE_NEWNET``, ``CLONE_NEWNS`` and ``CLONE_NEWUTS`` of ``linux/sched.h``."""
_OWN_SYS = "mount --make-rslave / && umount -l /sys && mount -t sysfs sysfs /sys && "
"""``/sys`` shows the interfaces of the network in which it was mounted."""
ROOM = "-" * 32768
"""A last argument and a variable of the server, whose places those of its forks are put into."""
ABOVE = 1000
"""The number from which on descriptors are kept while those below are put in their places."""


def show(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Have ``/proc`` show these: for a process that has cleared its environment.

    The kernel reads them where it put them when the server began, and moving that place takes a
    privilege. The C library has pointers to the variables that were there.
    """
    with open("/proc/self/stat") as file:
        # The 48th to the 51st field of proc(5); the list begins with the third.
        places = [int(field) for field in file.read().rpartition(")")[2].split()[45:49]]
    words = list(arguments), [f"{name}={value}" for name, value in variables.items()]
    for begin, end, shown in zip(places[::2], places[1::2], words, strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in shown)
        # A reader finds nothing of another program, and less of this one if it has no room.
        ctypes.memmove(begin, text[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def enter(network: str, commands: str) -> None:
    """Be on another machine, as by ``ip netns exec`` and ``unshare``."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{network}") as space:
        failed = libc.setns(space.fileno(), _NEW_NETWORK)
    if failed or libc.unshare(_NEW_MOUNTS | _NEW_NAME):
        raise OSError(ctypes.get_errno(), f"no namespaces in {network}")
    subprocess.run(["sh", "-c", _OWN_SYS + commands], check=True)


def join(pid: int) -> None:
    """Be on the machine of a process, with its mounts; it takes no privilege if that is ours."""
    if all(
        os.path.samefile(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}")
        for kind in ("net", "mnt", "uts")
    ):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.pidfd_open(pid), _NEW_NETWORK | _NEW_MOUNTS | _NEW_NAME):
        raise OSError(ctypes.get_errno(), f"no way to the namespaces of process {pid}")


def draw_other_numbers() -> None:
    """Each interpreter begins with seeds of its own; Python sees to that by itself."""
    import numpy as np
    import torch

    torch.default_generator.seed()
    np.random.seed()


def customize(folders: Sequence[str]) -> None:
    """Run what one of these folders has for the start of each interpreter."""
    for folder in folders:
        if os.path.isfile(file := os.path.join(folder, "sitecustomize.py")):
            runpy.run_path(file)
            return


def place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, ABOVE) for number in descriptors]
    for number in descriptors:
        os.close(number)
    for number, wanted in zip(kept, numbers, strict=True):
        os.dup2(number, wanted)
        os.close(number)
