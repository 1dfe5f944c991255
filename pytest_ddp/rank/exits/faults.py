"""Make every way out of a rank leave a Python stack in the rank's own file.

SIGKILL is the exception: nothing can be written then.
"""

from __future__ import annotations

import ctypes
import functools
import os as public_os
import sys
from collections.abc import Callable
from typing import IO, Any, NoReturn

from pytest_ddp.system.own import faulthandler, mmap, os, signal

_HANDLERS_STACK = 1 << 18
"""Bytes; pages that no handler needs are never made."""
_ASKED = frozenset({signal.SIGUSR1, signal.SIGTERM})
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
WATCHED = (*sorted(_ASKED), *_FATAL)
"""Signals that leave a stack."""
_ours: dict[signal.Signals, tuple[Any, int | None]] = {}
"""What Python and the kernel call at each."""
_action = ctypes.create_string_buffer(256)
"""Room for what ``sigaction`` of ``<signal.h>`` fills in, whose first member is the handler."""
_handler = ctypes.c_void_p.from_buffer(_action)
_exit_now = os._exit
_libc = ctypes.CDLL(None)
last_acts: list[Callable[[], None]] = []
"""What the rank itself does when its test calls ``os._exit``."""
_keep: list[Any] = []
"""What C code points to must not be collected."""


def install(path: str, children_path: str | None = None, *, native: bool = True) -> None:
    """Write stacks of this process to ``path`` on fatal signals, exits and SIGUSR1.

    The very first thing that a rank does: a SIGUSR1 that comes earlier would kill it.
    Processes that the rank forks write to a file of their own, ``path`` and "-children" unless
    another one is given. With ``native`` torch prints C++ stacks to standard error.
    """
    stream = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the life of the rank
    children_path = children_path or f"{path}-children"
    children = open(children_path, "ab", buffering=0)  # noqa: SIM115 - the same
    _keep.extend((stream, children))
    _answer_signals(stream)
    # faulthandler's handlers must be the ones on top, for torch's may never come to an end.
    faulthandler.disable()
    if native:
        _print_native_stacks()
    faulthandler.enable(file=stream, all_threads=True)
    _give_room_to_handlers()
    _ours.update({number: (signal.getsignal(number), _native(number)) for number in WATCHED})
    os.register_at_fork(after_in_child=functools.partial(_belong_to_child, children))
    _watch_loader_workers(children)
    pid = os.getpid()

    def write_stack() -> None:
        if os.getpid() == pid:
            faulthandler.dump_traceback(file=stream, all_threads=False)

    def exit_with_stack(status: int) -> NoReturn:
        write_stack()
        if os.getpid() == pid:
            for act in last_acts:
                act()
        _exit_now(status)

    # Pickled by this name, as the target of a process.
    exit_with_stack.__module__, exit_with_stack.__qualname__ = "os", "_exit"
    public_os._exit = exit_with_stack
    _at_libc_exit(write_stack)


def _answer_signals(stream: IO[bytes]) -> None:
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
    # Chained, so that the default action still ends the process.
    faulthandler.register(signal.SIGTERM, file=stream, all_threads=True, chain=True)


def _print_native_stacks() -> None:
    """Have torch print C++ stacks to standard error before a fatal signal ends the process.

    torch takes other signals as well. SIGINT must stay Python's. SIGABRT comes from a heap
    that is found broken, under a lock without which torch's handler waits for ever; what
    C++ has to say about an exception is on standard error anyhow. SIGUSR2, with which
    torch asks the other threads for their stacks, ends no process any more.
    """
    switch: Any = getattr(
        getattr(sys.modules.get("torch"), "_C", None),
        "_set_print_stack_traces_on_fatal_signal",
        None,
    )
    if switch is None:  # another torch, or none yet
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGABRT)}
    switch(True)
    for number, handler in before.items():
        if handler is not None:
            signal.signal(number, handler)


class _Stack(ctypes.Structure):
    """``stack_t`` of ``<signal.h>``."""

    _fields_ = (
        ("ss_sp", ctypes.c_void_p),
        ("ss_flags", ctypes.c_int),
        ("ss_size", ctypes.c_size_t),
    )


def _give_room_to_handlers() -> None:
    """Have handlers of the main thread run on a stack of their own that is large enough.

    faulthandler's has some 16 KiB of the heap, on which torch's handler runs too where
    faulthandler calls it: it writes over whatever lies below, and the rank then dies of
    SIGABRT or waits for ever (seen with torch 2.13).
    """
    memory = mmap.mmap(-1, _HANDLERS_STACK)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _keep.append(memory)
    _libc.sigaltstack(ctypes.byref(_Stack(start, 0, _HANDLERS_STACK)), None)


def _native(number: signal.Signals) -> int | None:
    _libc.sigaction(number, None, _action)
    return _handler.value


def rearm() -> tuple[str, ...]:
    """Take back the signals that nobody holds, and cancel ``dump_traceback_later``.

    Python does not know of faulthandler's handlers: a test that puts back the one that it was
    told of has taken ours away, and is not to blame. Handlers that Python knows of are let be.

    Returns:
        what was taken away on purpose, in words.
    """
    faulthandler.cancel_dump_traceback_later()
    lost = [number for number, ours in _ours.items() if _is_lost(number, *ours)]
    unregister: Any = faulthandler.unregister  # whose answer typeshed does not know
    gone = [n.name for n in lost if n in _ASKED and not unregister(n)]
    if lost:
        _answer_signals(_keep[0])
    if faulthandler.is_enabled():
        enable(again=not _ASKED.issuperset(lost))
    return (f"faulthandler's handler of {', '.join(gone)} (on -> off)",) if gone else ()


def _is_lost(number: signal.Signals, known: Any, native: int | None) -> bool:
    return _native(number) != native and signal.getsignal(number) == known


def _belong_to_child(children: IO[bytes]) -> None:
    """In a process that the rank has forked: what it writes is not about the rank."""
    # Each is registered already, and only takes another file; handlers that the test has
    # set since then stay.
    _answer_signals(children)
    if faulthandler.is_enabled():
        faulthandler.enable(file=children, all_threads=True)


def _watch_loader_workers(children: IO[bytes]) -> None:
    """Have DataLoader workers leave a stack: they replace the handlers that they inherit."""
    module: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
    original = getattr(module, "_set_worker_signal_handlers", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_worker_signal_handlers(*args: Any) -> None:
        faulthandler.disable()
        original(*args)
        faulthandler.enable(file=children, all_threads=True)

    module._set_worker_signal_handlers = set_worker_signal_handlers


def enable(*, again: bool = False) -> None:
    """Write where we did: pytest, when it is unconfigured, has Python write elsewhere.

    Args:
        again: also where others have handlers of their own now.
    """
    for stream in _keep[:1]:
        if again or not faulthandler.is_enabled():
            faulthandler.disable()
            faulthandler.enable(file=stream, all_threads=True)
            _give_room_to_handlers()
        faulthandler.enable(file=stream, all_threads=True)


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
    _libc.on_exit(handler, None)
