"""The end of a rank as Python would have it, up to the destructors.

A rank leaves by ``_exit``, since torch's destructors would crash over the threads that still
run. Before that it does what an interpreter does at its end: it waits for threads, runs the
handlers of ``atexit`` (``weakref.finalize``, logging, multiprocessing and ``TemporaryDirectory``
are among them), lets multiprocessing's resource tracker clean up and flushes open files. What
was registered before the fork runs here too, as in each process of a torchrun world.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import sys
import weakref
from collections.abc import Callable, Iterator
from sys import _current_frames
from typing import Any, NamedTuple, NoReturn

from pytest_ddp.system import processes
from pytest_ddp.system.own import gc, os, signal, threading, time, traceback

_PATIENCE = 8.0
"""Seconds for threads and child processes that are on their way out."""
_LITTLE_PATIENCE = 0.2
"""The same where the test that left them has been told of already."""
_BUFFERED = io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom | io.BufferedRWPair

_known_finalizers = 0
"""How many finalizers there were when torch's were left out."""
_frozen: weakref.WeakSet[Any] = weakref.WeakSet()
"""Files that the rank had opened when it froze what was there."""


class End(NamedTuple):
    """What went wrong at the end of a rank."""

    stuck: list[str]
    """Threads and processes that would not end, in words."""
    raised: list[BaseException]
    """By handlers and by what is waited for, which for Python is no reason to fail."""


class _TooLongError(BaseException):
    """The interpreter would wait on for a thread."""


def run_handlers(*, told: bool) -> End:
    """Do it.

    Args:
        told: whether threads and processes that stay have been named already.
    """
    seconds = _LITTLE_PATIENCE if told else _PATIENCE
    end = time.monotonic() + seconds
    stuck: list[str] = []
    raised: list[BaseException] = []
    with _unraisable_into(raised):
        for step in (
            lambda: stuck.extend(_stuck_threads(seconds, raised)),
            lambda: stuck.extend(_stuck_children(end, raised)),
            spare_torch,
            atexit._run_exitfuncs,
            _stop_tracker,
            _flush_files,
        ):
            attempt(step, raised)
    return End([] if told else stuck, raised)


def attempt(step: Callable[[], object], raised: list[BaseException]) -> None:
    """Do it, and gather its error, which keeps nothing else from being done."""
    try:
        step()
    except _TooLongError:
        raise
    except BaseException as error:
        raised.append(error)


def _stuck_threads(seconds: float, raised: list[BaseException]) -> Iterator[str]:
    """Wait for threads, as the interpreter would do for ever."""
    # The first that raises would keep the others from being run, and threads from being ended.
    handlers: list[Callable[[], object]] = getattr(threading, "_threading_atexits", [])
    handlers[:] = [functools.partial(attempt, handler, raised) for handler in handlers]

    def give_up(*_: Any) -> NoReturn:
        raise _TooLongError

    # The main thread itself has to wait: threads may look whether it has ended.
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
    frame = _current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _stuck_children(end: float, raised: list[BaseException]) -> Iterator[str]:
    """Wait for multiprocessing's children, for which its own handler would wait for ever."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return
    for child in multiprocessing.active_children():
        if child.daemon:
            continue
        attempt(functools.partial(child.join, max(0.0, end - time.monotonic())), raised)
        # Not by its own methods, of which joblib's processes lack kill().
        if processes.look(child.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            yield f"The process {child.name!r} would not end with the rank, and was killed.\n"


@contextlib.contextmanager
def _unraisable_into(raised: list[BaseException]) -> Iterator[None]:
    """Gather the errors of handlers, which end nothing."""

    def gather(unraisable: Any) -> None:
        if unraisable.exc_value is not None:
            raised.append(unraisable.exc_value)

    before, sys.unraisablehook = sys.unraisablehook, gather
    try:
        yield
    finally:
        sys.unraisablehook = before


def spare_torch() -> None:
    """Leave out torch's taking apart of its operators: 30 ms for a process that goes anyhow.

    What forks ranks does it for them, whose memory it would make their own.
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
    """Have the tracker remove what was leaked, before it is killed with the rank."""
    module: Any = sys.modules.get("multiprocessing.resource_tracker")
    stop = getattr(getattr(module, "_resource_tracker", None), "_stop", None)
    if stop is not None:
        stop()


def freeze() -> None:
    """``gc.freeze()``, after which the files that the rank has opened can still be found."""
    _frozen.update(_open_files())
    gc.freeze()


def _flush_files() -> None:
    """What the destructors of open files would do.

    Of those that the rank has opened: a look at what is frozen since the fork would copy it.
    """
    for file in {*_frozen, *_open_files()}:
        with contextlib.suppress(OSError, ValueError):
            file.flush()


def _open_files() -> list[Any]:
    # Not isinstance, which asks things that are not what they seem for their class.
    found: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), _BUFFERED)]
    return [file for file in found if not file.closed]
