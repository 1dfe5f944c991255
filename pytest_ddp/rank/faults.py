"""Make every way out of a rank leave a Python stack in the rank's own file.

SIGKILL is the exception: nothing can be written then.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from typing import Any, NoReturn

_exit_now = os._exit
_keep: list[Any] = []
"""What C code points to must not be collected."""


def install(path: str) -> None:
    """Write stacks of this process to ``path`` on fatal signals, exits and SIGUSR1.

    The very first thing that a rank does: a SIGUSR1 that comes earlier would kill it.
    """
    stream = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the life of the rank
    _keep.append(stream)
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
    # Chained, so that the default action still ends the process.
    faulthandler.register(signal.SIGTERM, file=stream, all_threads=True, chain=True)
    faulthandler.enable(file=stream, all_threads=True)
    pid = os.getpid()

    def write_stack() -> None:
        if os.getpid() == pid:
            faulthandler.dump_traceback(file=stream, all_threads=False)

    def exit_with_stack(status: int) -> NoReturn:
        write_stack()
        _exit_now(status)

    os._exit = exit_with_stack
    _at_libc_exit(write_stack)


def write(text: str) -> None:
    """Leave a text where the stacks are."""
    for stream in _keep[:1]:
        stream.write(text.encode(errors="replace"))


def leave(status: int) -> NoReturn:
    """End the process as the rank itself means to: no stack, no exit handlers."""
    _exit_now(status)


def _at_libc_exit(write_stack: Any) -> None:
    def leave_now(status: int, _: Any) -> None:
        write_stack()
        # torch's destructors would crash over the threads that still run.
        _exit_now(status)

    # on_exit, unlike atexit, tells the status. Ranks leave by _exit, so that the handler
    # never runs after the interpreter has been taken down.
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(leave_now)
    _keep.append(handler)
    ctypes.CDLL(None).on_exit(handler, None)
