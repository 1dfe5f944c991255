"""Cleaning up after a test: restore what it changed, report what it leaked."""

from __future__ import annotations

import contextlib
import os as public_os
import resource
from collections.abc import Callable, Container, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import (
    get_default_device,
    get_default_dtype,
    get_num_threads,
    is_grad_enabled,
    set_default_device,
    set_default_dtype,
    set_grad_enabled,
    set_num_threads,
)
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level
from torch.distributed import is_initialized

from pytest_ddp.protocol.messages import Change, Leak
from pytest_ddp.rank.cleanup.leftovers import TRACKER
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.groups import torch_state
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import faulthandler, gc, os, signal, threading

# ------------------------------------------------------------------
# State that a test must leave as it found it, and resources that it must not leak.
#
# Fixtures wider than a test (class scope and up) may change any of it for as long as they live, so
# the baseline moves with them: only what the test itself changed or leaked counts.

_HELPERS = ("torch_shm_manager", TRACKER, "multiprocessing.forkserver")
"""Processes that libraries start once and keep; a test cannot end them."""
_HELPER_THREADS = ("pytest-ddp link", "tqdm", "Trio thread ")
"""Beginnings of the names of threads that libraries keep. Trio's have this name while they wait for
work, for ten seconds, and one of their task while they work."""
_PYTEST_OWN = b"PYTEST_CURRENT_TEST"
_SHOWN = 3
"""Names in a list before it is cut short."""
_TOOL_CACHES = (b"TORCHINDUCTOR_", b"TRITON_")
"""Prefixes of variables that torch sets when it imports its compilers."""
_LOADER_WORKER = "pt_data_worker"
"""The process name that torch's DataLoader gives its workers."""
_SETTLE = 0.5
"""Seconds to wait for a thread or process that is ending."""
_LIMITS = {
    name: getattr(resource, name)
    for name in sorted(dir(resource))
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name of RLIMIT_NOFILE
}
_getrlimit = resource.getrlimit
_getsignal: Any = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
"""Python's function without the search for the handler's name, which only a changed handler
needs."""
_function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_is_alive, _join = threading.Thread.is_alive, threading.Thread.join
"""Bound here, as a test may patch the methods of all threads."""
_FOREIGN: Any = getattr(threading, "_DummyThread", ())
"""Python's object for a thread that C++ code has started; it stays after the thread's end."""


@dataclass(frozen=True)
class Settings:
    """Process-wide state that is restored after each test."""

    environment: dict[bytes, bytes]
    directory: str
    dtype: torch.dtype
    device: torch.device
    grad: bool
    threads: int
    alarm: str
    debug: DebugLevel
    meshes: tuple[Any, ...]
    handlers: tuple[Any, ...]
    """Python's handlers of the signals on which ranks write their stacks."""
    faulthandler: str
    limits: tuple[tuple[int, int], ...]
    """Soft and hard, of each of :data:`_LIMITS`."""

    @classmethod
    def now(cls) -> Settings:
        return cls(
            environment=_environment(),
            directory=_directory(),
            dtype=get_default_dtype(),
            device=_device(),
            grad=is_grad_enabled(),
            threads=get_num_threads(),
            alarm="on" if any(signal.getitimer(signal.ITIMER_REAL)) else "off",
            debug=get_debug_level(),
            meshes=torch_state.entered_meshes(),
            handlers=tuple(map(_getsignal, crash_stacks.WATCHED)),
            faulthandler="on" if faulthandler.is_enabled() else "off",
            limits=_limits(),
        )

    def follow(self, before: Settings, after: Settings) -> Settings:
        """Return these settings with the changes from ``before`` to ``after`` applied."""
        environment = dict(self.environment)
        for name in before.environment.keys() | after.environment.keys():
            if before.environment.get(name) != after.environment.get(name):
                environment.pop(name, None)
                if name in after.environment:
                    environment[name] = after.environment[name]
        return replace(
            self,
            environment=environment,
            **{
                name: getattr(after, name)
                for name in ("handlers", "limits", *(name for name, *_ in _SETTERS))
                if getattr(before, name) != getattr(after, name)
            },
        )

    def restore(self) -> tuple[Change, ...]:
        """Restore these settings.

        Returns:
            what had been changed; empty if nothing had.
        """
        now = Settings.now()
        if now == self:
            return ()
        changes = list(_restore_environment(self.environment, now.environment))
        changes += _restore_handlers(self.handlers, now.handlers)
        changes += _restore_limits(self.limits, now.limits)
        for name, words, set_back in _SETTERS:
            ours, theirs = getattr(self, name), getattr(now, name)
            if ours != theirs:
                changes.append(Change(words, f"{ours} -> {theirs}"))
                with contextlib.suppress(OSError):
                    set_back(ours)
        return tuple(changes)


def _environment() -> dict[bytes, bytes]:
    # The mapping below os.environ, since decoding the names takes a hundred times as long. A test
    # may have replaced os.environ by a dict, which has no such mapping.
    raw = getattr(public_os.environ, "_data", None)
    if raw is None:
        raw = {os.fsencode(name): os.fsencode(value) for name, value in public_os.environ.items()}
    variables: dict[bytes, bytes] = dict(raw)
    variables.pop(_PYTEST_OWN, None)
    return variables


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a directory that is gone"


def _device() -> torch.device:
    # Any device but the CPU is on the stack of function modes, which torch searches slowly.
    return get_default_device() if _function_modes() else torch.device("cpu")


def _set_device(device: torch.device) -> None:
    set_default_device(None if device.type == "cpu" else device)


def _set_alarm(state: str) -> None:
    # A timer that a wide fixture had set, and the test has cancelled, cannot be restored.
    if state == "off":
        signal.setitimer(signal.ITIMER_REAL, 0)


def _set_faulthandler(state: str) -> None:
    if state == "on":
        crash_stacks.enable()
    else:
        faulthandler.disable()


_SETTERS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("directory", "the working directory", os.chdir),
    ("dtype", "torch's default dtype", set_default_dtype),
    ("device", "torch's default device", _set_device),
    ("grad", "torch's grad mode", set_grad_enabled),
    ("threads", "torch's number of threads", set_num_threads),
    ("alarm", "the timer of SIGALRM", _set_alarm),
    ("debug", "torch.distributed's debug level", set_debug_level),
    ("faulthandler", "faulthandler", _set_faulthandler),
    ("meshes", "torch's current device mesh", torch_state.set_entered_meshes),
)
"""All settings but environment, handlers and limits: field, words, function that restores it."""


def _restore_handlers(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> Iterator[Change]:
    for number, our, their in zip(crash_stacks.WATCHED, ours, theirs, strict=True):
        if our != their:
            signal.signal(number, signal.SIG_DFL if our is None else our)
            yield Change(f"the handler of {number.name}", f"{_name(our)} -> {_name(their)}")


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(map(_getrlimit, _LIMITS.values()))


def _restore_limits(
    ours: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...]
) -> Iterator[Change]:
    for (name, number), our, their in zip(_LIMITS.items(), ours, theirs, strict=True):
        if our != their:
            with contextlib.suppress(ValueError):  # only root may raise a hard limit again
                resource.setrlimit(number, our)
            yield Change(name, f"{our[0]} -> {their[0]}")


def _name(handler: Any) -> str:
    handler = signal.Handlers(handler) if isinstance(handler, int) else handler
    return str(getattr(handler, "name", getattr(handler, "__qualname__", handler)))


def _restore_environment(ours: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> Iterator[Change]:
    differ = (name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    names = sorted(name for name in differ if not name.startswith(_TOOL_CACHES))
    for name in names:
        if name in ours:
            public_os.environ[os.fsdecode(name)] = os.fsdecode(ours[name])
        else:
            public_os.environ.pop(os.fsdecode(name), None)
    done = {
        "set": [name for name in names if name not in ours],
        "changed": [name for name in names if name in ours and name in theirs],
        "removed": [name for name in names if name not in theirs],
    }
    texts = [f"{verb} {_listed(some)}" for verb, some in done.items() if some]
    if texts:
        yield Change("the environment", "; ".join(texts))


def _listed(names: list[bytes]) -> str:
    shown = ", ".join(os.fsdecode(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


@dataclass(frozen=True)
class LiveResources:
    """Resources beside the rank's main thread: threads, child processes, process groups."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    groups: frozenset[str]
    default: frozenset[int]
    """The id of the default process group, if there is one."""
    services: frozenset[str]
    stores: frozenset[int]
    """Stores that user code holds."""
    traces: frozenset[str]
    """What was done and cannot be undone: see :func:`torch_state.irreversible`."""

    @classmethod
    def now(cls) -> LiveResources:
        return cls(
            threads=_threads(),
            children=_children(),
            groups=frozenset(group_names()),
            default=frozenset([id(dist.group.WORLD)] if is_initialized() else []),
            services=torch_state.services(),
            stores=frozenset(torch_state.held()),
            traces=torch_state.irreversible(),
        )

    def follow(self, before: LiveResources, after: LiveResources) -> LiveResources:
        """Return these resources and those that were added between ``before`` and ``after``."""
        return LiveResources(
            self.threads | (after.threads - before.threads),
            self.children | (after.children - before.children),
            self.groups | (after.groups - before.groups),
            self.default | (after.default - before.default),
            self.services | (after.services - before.services),
            self.stores | (after.stores - before.stores),
            self.traces | (after.traces - before.traces),
        )

    def has_more_groups(self) -> bool:
        """Whether there are process groups now that are not among those seen before."""
        return not self.groups.issuperset(group_names())

    def has_other_default_group(self) -> bool:
        """Whether there is a default process group now that is not among those seen before."""
        return is_initialized() and id(dist.group.WORLD) not in self.default

    def more_stores(self) -> tuple[Leak, ...]:
        """Stores that are held now and were not before, after pytest has released the frames."""
        if not self.stores.issuperset(torch_state.held()):
            gc.collect()
        held = torch_state.held()
        return tuple(Leak(*held[number]) for number in sorted(held.keys() - self.stores))

    def leaks(self, users_groups: Container[str]) -> tuple[Leak, ...]:
        """Resources that exist now and are not among these, after those that end have ended.

        Args:
            users_groups: names of groups that user code has made; a test is not responsible for
                others.
        """
        now = LiveResources.now()
        if leaving := now.threads - self.threads:
            for thread in leaving:
                _join(thread, _SETTLE)
            now = LiveResources.now()
        if now.children - self.children:
            now = _settled(self)
        children = map(processes.process_of, sorted(now.children - self.children))
        groups = sorted(name for name in now.groups - self.groups if name in users_groups)
        return (
            *(Leak("thread", repr(t.name)) for t in sorted(now.threads - self.threads, key=str)),
            *(Leak("child process", _what(child)) for child in children if child is not None),
            *(Leak("process group", repr(name)) for name in groups),
            *(Leak(service) for service in sorted(now.services - self.services)),
        )


def group_names() -> list[str]:
    """Names of this rank's process groups except the default one, whoever made them."""
    if not is_initialized():
        return []
    world = dist.distributed_c10d._world
    return [world.pg_names[group] for group in world.pg_map if group is not dist.group.WORLD]


def _threads() -> frozenset[threading.Thread]:
    return frozenset(thread for thread in threading.enumerate() if _counts(thread))


def _children() -> frozenset[int]:
    return frozenset(
        child.pid
        for child in processes.children()
        if not any(helper in child.command for helper in _HELPERS)
    )


def _counts(thread: threading.Thread) -> bool:
    return (
        thread is not threading.main_thread()
        and not isinstance(thread, _FOREIGN)
        and _is_alive(thread)
        and not thread.name.startswith(_HELPER_THREADS)
        and type(thread).__module__.partition(".")[0] != "tqdm"
    )


def _settled(company: LiveResources) -> LiveResources:
    # A DataLoader with persistent workers ends them when it is collected. Ended children are then
    # waited for here, as multiprocessing reaps them only when one of its functions is called.
    gc.collect()
    for pid in _children() - company.children:
        processes.wait_for_end([pid], _SETTLE)
    return LiveResources.now()


def _what(child: processes.Process) -> str:
    if child.name == _LOADER_WORKER:
        return "a DataLoader worker"
    if processes.is_fork(child):
        return "forked by the test"
    return child.command if len(child.command) <= 60 else child.command[:57] + "..."


class Cleanup:
    """A pytest plugin that compares the rank's state before and after each test.

    It compares after the teardown of the item itself and before that of module and session: their
    fixtures may keep what they changed.
    """

    def __init__(self, users_groups: Container[str]) -> None:
        """
        Args:
            users_groups: names of the process groups that user code has made.
        """
        self._users_groups = users_groups
        self.begin()

    def begin(self) -> None:
        """Take the current state as the one that the next test must return to."""
        crash_stacks.rearm()
        self._settings = Settings.now()
        self._company = LiveResources.now()
        self.changes: tuple[Change, ...] = ()
        self._limits_stay = False
        """The test lowered a hard limit, which could not be raised again."""
        self.leaks: tuple[Leak, ...] = ()
        self.has_more_groups = False
        """The test left new process groups, its own or a library's (a device mesh's)."""
        self.has_other_default_group = False
        """The test left a default group that is neither an earlier one nor a wide fixture's."""
        self.ended_alone = False
        """No fixture that is wider than the test was torn down with it."""

    def more_stores(self) -> tuple[Leak, ...]:
        """Stores that the test still holds."""
        return self._company.more_stores()

    def keeps_threads(self) -> bool:
        """Whether fixtures that are wider than the test run threads."""
        return bool(self._company.threads)

    def irreversible(self) -> bool:
        """Whether the test, or a fixture torn down with it, did what cannot be undone."""
        return self._limits_stay or bool(torch_state.irreversible() - self._company.traces)

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Attribute changes in the block to a fixture that is wider than the test."""
        settings, company = Settings.now(), LiveResources.now()
        try:
            yield
        finally:
            self._settings = self._settings.follow(settings, Settings.now())
            self._company = self._company.follow(company, LiveResources.now())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        failure: BaseException | None = None
        try:
            # The parent is the last collector that stays set up: only the item is torn down.
            parent: Any = item.parent
            item.session._setupstate.teardown_exact(parent)
        except BaseException as error:
            failure = error
        self.leaks = self._company.leaks(self._users_groups)
        self.has_more_groups = self._company.has_more_groups()
        self.has_other_default_group = self._company.has_other_default_group()
        self.changes = (*self._settings.restore(), *crash_stacks.rearm())
        # Looked at here: a wider fixture that is torn down below may restore a limit of its own.
        self._limits_stay = self._settings.limits != _limits()
        wider = len(item.session._setupstate.stack)
        with _keep_first(failure):
            result = yield
        self.ended_alone = len(item.session._setupstate.stack) == wider
        return result


@contextlib.contextmanager
def _keep_first(failure: BaseException | None) -> Iterator[None]:
    """Run the block, then raise the earlier failure, in a group with the block's own if any."""
    try:
        yield
    except BaseException as error:
        if failure is None:
            raise
        raise BaseExceptionGroup("errors in teardown", [failure, error]) from None
    if failure is not None:
        raise failure


# ------------------------------------------------------------------
# Whether a test has broken its rank's GPU for the tests after it.


def broken_gpu() -> tuple[Leak, ...]:
    """A broken GPU, which answers every call with an error; nothing on the CPU.

    An illegal memory access or a device-side assert ruins the CUDA context of the process for good:
    correct tests would fail after it. The stream is queried without waiting for it, since a
    collective that a peer has not joined may keep it busy for ever; so the error of a kernel that
    is still running is missed.

    Source: CUDA runtime API, ``cudaStreamQuery`` and the errors after which "the process must be
    terminated and relaunched".
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    try:
        torch.cuda.current_stream().query()
    except RuntimeError as error:
        first, _, _ = str(error).partition("\n")
        return (Leak(f"a GPU that no longer works ({first})"),)
    return ()
