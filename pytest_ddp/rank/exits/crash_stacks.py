"""Makes every way out of a rank leave a Python stack in the rank's own file.

SIGKILL is the exception: nothing can be written then.
"""

from __future__ import annotations

import ctypes
import functools
import os as public_os
import sys
from collections.abc import Callable
from typing import IO, Any, NoReturn

from pytest_ddp.protocol.messages import Change
from pytest_ddp.system.stdlib import faulthandler, mmap, os, signal

_HANDLERS_STACK = 1 << 18
"""Bytes; only pages that are used take memory."""
_REGISTERED = frozenset({signal.SIGUSR1, signal.SIGTERM})
"""Signals registered by ``faulthandler.register``."""
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
WATCHED = (*sorted(_REGISTERED), *_FATAL)
"""Signals that leave a stack."""
_ours: dict[signal.Signals, tuple[Any, int | None]] = {}
"""Python's and the kernel's handler of each, as installed here."""
_action = ctypes.create_string_buffer(256)
"""A buffer for ``struct sigaction`` of ``<signal.h>``, whose first member is the handler."""
_handler = ctypes.c_void_p.from_buffer(_action)
_exit_now = os._exit
_libc = ctypes.CDLL(None)
before_exit: list[Callable[[], None]] = []
"""Called before the rank exits by its test's ``os._exit``."""
_keep: list[Any] = []
"""Objects that C code points to, which must not be freed."""


def install(path: str, children_path: str | None = None, *, native: bool = True) -> None:
    """Write stacks of this process to ``path`` on fatal signals, exits and SIGUSR1.

    A rank calls it before all else: a SIGUSR1 that arrives earlier would kill it. Processes that
    the rank forks write to a file of their own, ``children_path`` or ``path`` and "-children". With
    ``native``, torch prints C++ stacks to standard error.
    """
    stream = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the life of the rank
    children_path = children_path or f"{path}-children"
    children = open(children_path, "ab", buffering=0)  # noqa: SIM115 - the same
    _keep.extend((stream, children))
    _register_signals(stream)
    # faulthandler's handlers must run first, as torch's may never return: so they are set last.
    faulthandler.disable()
    if native:
        _print_native_stacks()
    faulthandler.enable(file=stream, all_threads=True)
    _enlarge_signal_stack()
    _ours.update({number: (signal.getsignal(number), _native(number)) for number in WATCHED})
    os.register_at_fork(after_in_child=functools.partial(_use_childs_file, children))
    _watch_loader_workers(children)
    pid = os.getpid()

    def write_stack() -> None:
        if os.getpid() == pid:
            faulthandler.dump_traceback(file=stream, all_threads=False)

    def exit_with_stack(status: int) -> NoReturn:
        write_stack()
        if os.getpid() == pid:
            for act in before_exit:
                act()
        _exit_now(status)

    # A process with this target is pickled with its function's name.
    exit_with_stack.__module__, exit_with_stack.__qualname__ = "os", "_exit"
    public_os._exit = exit_with_stack
    _at_libc_exit(write_stack)


def _register_signals(stream: IO[bytes]) -> None:
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
    # Chained, so that the default action still ends the process.
    faulthandler.register(signal.SIGTERM, file=stream, all_threads=True, chain=True)


def _print_native_stacks() -> None:
    """Make torch print C++ stacks to standard error before a fatal signal ends the process.

    torch takes other signals as well. SIGINT must stay Python's. SIGABRT is raised for a corrupt
    heap, under a lock that torch's handler would wait for without end; C++ prints its exceptions to
    standard error anyway. SIGUSR2, by which torch requests the other threads' stacks, then no
    longer ends a process.
    """
    switch: Any = getattr(
        getattr(sys.modules.get("torch"), "_C", None),
        "_set_print_stack_traces_on_fatal_signal",
        None,
    )
    if switch is None:  # another release of torch, or not imported yet
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


def _enlarge_signal_stack() -> None:
    """Run the main thread's signal handlers on a separate stack that is large enough.

    faulthandler's has some 16 KiB of the heap. torch's handler runs on it too if faulthandler calls
    it, and overwrites the memory below, so that the rank dies of SIGABRT or never ends (torch
    2.13).
    """
    memory = mmap.mmap(-1, _HANDLERS_STACK)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _keep.append(memory)
    _libc.sigaltstack(ctypes.byref(_Stack(start, 0, _HANDLERS_STACK)), None)


def _native(number: signal.Signals) -> int | None:
    _libc.sigaction(number, None, _action)
    return _handler.value


def rearm() -> tuple[Change, ...]:
    """Reinstall handlers that a test has removed by accident, and cancel dump_traceback_later.

    Python does not know of faulthandler's handlers: a test that restores the handler that Python
    had reported has removed ours, and is not to blame. Handlers that Python knows of stay.

    Returns:
        what was removed on purpose.
    """
    faulthandler.cancel_dump_traceback_later()
    lost = [number for number, ours in _ours.items() if _is_lost(number, *ours)]
    unregister: Any = faulthandler.unregister  # typeshed lacks its result
    gone = [n.name for n in lost if n in _REGISTERED and not unregister(n)]
    if lost:
        _register_signals(_keep[0])
    if faulthandler.is_enabled():
        enable(again=not _REGISTERED.issuperset(lost))
    return (Change(f"faulthandler's handler of {', '.join(gone)}", "on -> off"),) if gone else ()


def _is_lost(number: signal.Signals, known: Any, native: int | None) -> bool:
    return _native(number) != native and signal.getsignal(number) == known


def _use_childs_file(children: IO[bytes]) -> None:
    """Write to the children's file, in a process that the rank has forked."""
    # All of these are registered already, and only get another file; handlers that the test has
    # set in the meantime stay.
    _register_signals(children)
    if faulthandler.is_enabled():
        faulthandler.enable(file=children, all_threads=True)


def _watch_loader_workers(children: IO[bytes]) -> None:
    """Make DataLoader workers leave a stack: they replace the handlers that they inherit."""
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
    """Write to the rank's file again: pytest redirects faulthandler when it is unconfigured.

    Args:
        again: install the handlers again even if others have replaced them.
    """
    for stream in _keep[:1]:
        if again or not faulthandler.is_enabled():
            faulthandler.disable()
            faulthandler.enable(file=stream, all_threads=True)
            _enlarge_signal_stack()
        faulthandler.enable(file=stream, all_threads=True)


def write(text: str) -> None:
    """Write a text to the file with the stacks."""
    for stream in _keep[:1]:
        stream.write(text.encode(errors="replace"))


def exit_now(status: int) -> NoReturn:
    """End the process at the rank's own will: without a stack, without exit handlers."""
    _exit_now(status)


def _at_libc_exit(write_stack: Any) -> None:
    def leave_now(status: int, _: Any) -> None:
        write_stack()
        # torch's destructors would crash over threads that are still running.
        _exit_now(status)

    # on_exit, as atexit does not pass the status. Ranks exit by _exit, so that the handler never
    # runs after the interpreter has been finalized.
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(leave_now)
    _keep.append(handler)
    _libc.on_exit(handler, None)
