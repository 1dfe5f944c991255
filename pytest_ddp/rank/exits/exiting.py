"""The end of a rank, as Python's own up to the destructors.

A rank exits by ``_exit``, since torch's destructors would crash over threads that still run.
Before that it does what an interpreter does at its end: it waits for threads, runs the handlers of
``atexit`` (``weakref.finalize``, logging, multiprocessing and ``TemporaryDirectory`` use it), lets
multiprocessing's resource tracker clean up and flushes open files. Handlers that were registered
before the fork run here too, as in each process of a torchrun world.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from pytest_ddp.system import processes
from pytest_ddp.system.frames import current_frames
from pytest_ddp.system.stdlib import gc, os, signal, threading, time, traceback

_PATIENCE = 8.0
"""Seconds to wait for threads and child processes to end."""
_LITTLE_PATIENCE = 0.2
"""Seconds to wait for threads and child processes, if the test that left them is reported
already."""
_BUFFERED = io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom | io.BufferedRWPair

_known_finalizers = 0
"""Number of finalizers when torch's were last disabled."""
_frozen: weakref.WeakSet[Any] = weakref.WeakSet()
"""Files that the rank had opened before :func:`freeze`, which hides them from ``gc``."""


class ProcessEnd(NamedTuple):
    """What went wrong at the end of a rank."""

    stuck: list[str]
    """Threads and processes that did not end, in words."""
    raised: list[BaseException]
    """Errors of handlers and of threads, which Python does not treat as failures."""


class _TooLongError(BaseException):
    """Python would wait for a thread any longer."""


def run_handlers(*, reported: bool) -> ProcessEnd:
    """Do what an interpreter does at its end.

    Args:
        reported: True if remaining threads and processes have been reported as leaks already.
    """
    seconds = _LITTLE_PATIENCE if reported else _PATIENCE
    end = time.monotonic() + seconds
    stuck: list[str] = []
    raised: list[BaseException] = []
    with _unraisable_into(raised):
        # In Python's order: threads may register handlers, and handlers may write to files.
        for step in (
            lambda: stuck.extend(_stuck_threads(seconds, raised)),
            lambda: stuck.extend(_stuck_children(end, raised)),
            skip_torch_finalizers,
            atexit._run_exitfuncs,
            _stop_tracker,
            _flush_files,
        ):
            attempt(step, raised)
    return ProcessEnd([] if reported else stuck, raised)


def attempt(step: Callable[[], object], raised: list[BaseException]) -> None:
    """Run a step, and collect its error, so that the other steps run all the same."""
    try:
        step()
    except _TooLongError:
        raise
    except BaseException as error:
        raised.append(error)


def _stuck_threads(seconds: float, raised: list[BaseException]) -> Iterator[str]:
    """Wait for threads with a limit; the interpreter would wait for ever."""
    # If one raised, the others would not be run, and threads would not be ended.
    handlers: list[Callable[[], object]] = getattr(threading, "_threading_atexits", [])
    handlers[:] = [functools.partial(attempt, handler, raised) for handler in handlers]

    def give_up(*_: Any) -> NoReturn:
        raise _TooLongError

    # Not on another thread: threads may check whether the main thread has ended. So the limit is a
    # signal.
    signal.signal(signal.SIGALRM, give_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except _TooLongError as error:
        staying = [thread for thread in threading.enumerate() if _stays(thread)]
        for thread in staying:
            yield f"The thread {thread.name!r} would not end with the rank:\n{_stack(thread)}"
        if not staying:
            calls = traceback.extract_tb(error.__traceback__)
            where = traceback.format_list([call for call in calls if call.filename != __file__])
            yield (
                "A handler of threading._register_atexit would not end with the rank:\n"
                + "".join(where)
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _stays(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()


def _stack(thread: threading.Thread) -> str:
    frame = current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _stuck_children(end: float, raised: list[BaseException]) -> Iterator[str]:
    """Wait for multiprocessing's children; its own handler would wait for ever."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return
    for child in multiprocessing.active_children():
        if child.daemon:
            continue
        attempt(functools.partial(child.join, max(0.0, end - time.monotonic())), raised)
        # Not by child.kill(), which joblib's processes lack.
        if processes.process_of(child.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            yield f"The process {child.name!r} would not end with the rank, and was killed.\n"


@contextlib.contextmanager
def _unraisable_into(raised: list[BaseException]) -> Iterator[None]:
    """Collect the errors of handlers, which Python only prints."""

    def gather(unraisable: Any) -> None:
        if unraisable.exc_value is not None:
            raised.append(unraisable.exc_value)

    before, sys.unraisablehook = sys.unraisablehook, gather
    try:
        yield
    finally:
        sys.unraisablehook = before


def skip_torch_finalizers() -> None:
    """Skip torch's deregistration of its operators: 30 ms, in a process that ends anyway.

    The process that forks ranks does it for them, as it would copy memory pages in each rank.
    """
    global _known_finalizers
    registry: Any = getattr(weakref.finalize, "_registry", {})
    if len(registry) == _known_finalizers:
        return
    for finalizer in list(registry):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", "") == "torch.library":
            finalizer.atexit = False
    _known_finalizers = len(registry)


def _stop_tracker() -> None:
    """Let the tracker remove what was leaked, before it is killed with the rank."""
    module: Any = sys.modules.get("multiprocessing.resource_tracker")
    stop = getattr(getattr(module, "_resource_tracker", None), "_stop", None)
    if stop is not None:
        stop()


def freeze() -> None:
    """``gc.freeze()`` that keeps track of the files that the rank has opened."""
    _frozen.update(_open_files())
    gc.freeze()


def _flush_files() -> None:
    """Flush open files, as their destructors would.

    Only files that the rank has opened: examining objects that are frozen since the fork would
    copy their memory pages.
    """
    for file in {*_frozen, *_open_files()}:
        with contextlib.suppress(OSError, ValueError):
            file.flush()


def _open_files() -> list[Any]:
    # Not isinstance, which runs the ``__class__`` of proxies.
    found: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), _BUFFERED)]
    return [file for file in found if not file.closed]
