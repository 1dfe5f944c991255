"""What a test must leave as it found it, and what it must not leave behind.

Wide fixtures (class scope and up) may change all of it for as long as they live; so
the baseline moves with them, and only what is left of a test's own doing counts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.rank import processes

_HELPERS = ("torch_shm_manager", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that libraries start once and keep; no test can end them."""
_HELPER_THREADS = ("pytest-ddp link", "tqdm")
_PYTEST_OWN = b"PYTEST_CURRENT_TEST"
_SHOWN = 3
"""Names in a list before it is cut short."""
_TOOL_CACHES = (b"TORCHINDUCTOR_", b"TRITON_")
"""Prefixes of variables that torch sets by itself when it imports its compilers."""
_LOADER_WORKER = "pt_data_worker"
"""What torch's DataLoader has its workers call themselves."""
_SETTLE = 0.5
"""Seconds that a thread or process which is on its way out is given."""


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

    @classmethod
    def now(cls) -> Settings:
        return cls(
            environment=_environment(),
            directory=_directory(),
            dtype=torch.get_default_dtype(),
            device=torch.get_default_device(),
            grad=torch.is_grad_enabled(),
            threads=torch.get_num_threads(),
            alarm="on" if any(signal.getitimer(signal.ITIMER_REAL)) else "off",
        )

    def follow(self, before: Settings, after: Settings) -> Settings:
        """These settings with the changes from ``before`` to ``after`` made to them too."""
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
                for name in ("directory", "dtype", "device", "grad", "threads", "alarm")
                if getattr(before, name) != getattr(after, name)
            },
        )

    def restore(self) -> tuple[str, ...]:
        """Bring these settings back.

        Returns:
            what had been changed, in words; empty if nothing was.
        """
        now = Settings.now()
        if now == self:
            return ()
        changes = list(_restore_environment(self.environment, now.environment))
        setters: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
            ("directory", "the working directory", os.chdir),
            ("dtype", "torch's default dtype", torch.set_default_dtype),
            ("device", "torch's default device", _set_device),
            ("grad", "torch's grad mode", torch.set_grad_enabled),
            ("threads", "torch's number of threads", torch.set_num_threads),
            ("alarm", "the timer of SIGALRM", _set_alarm),
        )
        for name, words, set_back in setters:
            ours, theirs = getattr(self, name), getattr(now, name)
            if ours != theirs:
                changes.append(f"{words} ({ours} -> {theirs})")
                with contextlib.suppress(OSError):
                    set_back(ours)
        return tuple(changes)


def _environment() -> dict[bytes, bytes]:
    # The mapping below os.environ, since decoding each name costs a hundred times as much.
    # A test may have left a dict of its own in the place of os.environ.
    raw = getattr(os.environ, "_data", None)
    if raw is None:
        raw = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    variables: dict[bytes, bytes] = dict(raw)
    variables.pop(_PYTEST_OWN, None)
    return variables


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a directory that is gone"


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _set_alarm(state: str) -> None:
    # One that a wide fixture had set, and the test has cancelled, cannot be brought back.
    if state == "off":
        signal.setitimer(signal.ITIMER_REAL, 0)


def _restore_environment(ours: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> Iterator[str]:
    differ = (name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    names = sorted(name for name in differ if not name.startswith(_TOOL_CACHES))
    for name in names:
        if name in ours:
            os.environ[os.fsdecode(name)] = os.fsdecode(ours[name])
        else:
            os.environ.pop(os.fsdecode(name), None)
    done = {
        "set": [name for name in names if name not in ours],
        "changed": [name for name in names if name in ours and name in theirs],
        "removed": [name for name in names if name not in theirs],
    }
    texts = [f"{verb} {_listed(some)}" for verb, some in done.items() if some]
    if texts:
        yield f"the environment ({'; '.join(texts)})"


def _listed(names: list[bytes]) -> str:
    shown = ", ".join(os.fsdecode(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


@dataclass(frozen=True)
class Company:
    """Threads, child processes and process groups that live beside the rank's main thread."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    groups: frozenset[str]

    @classmethod
    def now(cls) -> Company:
        return cls(
            threads=frozenset(thread for thread in threading.enumerate() if _counts(thread)),
            children=frozenset(
                child.pid
                for child in processes.children()
                if not any(helper in child.command for helper in _HELPERS)
            ),
            groups=frozenset(group_names()),
        )

    def follow(self, before: Company, after: Company) -> Company:
        """This company with those who came between ``before`` and ``after``."""
        return Company(
            self.threads | (after.threads - before.threads),
            self.children | (after.children - before.children),
            self.groups | (after.groups - before.groups),
        )

    def strangers(self) -> tuple[str, ...]:
        """Who is here now and was not, in words, once those on their way out have gone."""
        for thread in Company.now().threads - self.threads:
            thread.join(_SETTLE)
        now = Company.now()
        if now.children - self.children:
            now = _settled(self)
        return (
            *(f"thread {thread.name!r}" for thread in sorted(now.threads - self.threads, key=str)),
            *(
                f"child process {child.pid} ({_what(child)})"
                for child in map(processes.look, sorted(now.children - self.children))
                if child is not None
            ),
            *(f"process group {name!r}" for name in sorted(now.groups - self.groups)),
        )


def group_names() -> list[str]:
    """Names of the process groups of this rank but the default one, however it was made."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    world = dist.distributed_c10d._world
    return [world.pg_names[group] for group in world.pg_map if group is not dist.group.WORLD]


def _counts(thread: threading.Thread) -> bool:
    return (
        thread is not threading.main_thread()
        and thread.is_alive()
        and not thread.name.startswith(_HELPER_THREADS)
        and type(thread).__module__.partition(".")[0] != "tqdm"
    )


def _settled(company: Company) -> Company:
    # multiprocessing reaps children that have ended only when it is asked.
    # A DataLoader whose workers persist ends them when it is collected.
    gc.collect()
    for pid in Company.now().children - company.children:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            _wait(descriptor)
            os.close(descriptor)
    return Company.now()


def _wait(descriptor: int) -> None:

    select.select([descriptor], [], [], _SETTLE)


def _what(child: processes.Process) -> str:
    if child.name == _LOADER_WORKER:
        return "a DataLoader worker"
    own = processes.look(os.getpid())
    if own is not None and child.command == own.command:
        # Which is the host's, and says nothing of what the test forked.
        return "forked by the test"
    return child.command if len(child.command) <= 60 else child.command[:57] + "..."
