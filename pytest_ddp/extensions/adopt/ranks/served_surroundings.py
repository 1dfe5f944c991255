"""Replaces the state of the service by that of a new interpreter."""

from __future__ import annotations

import io
import os as public_os
import sys
from types import ModuleType
from typing import Any, NamedTuple

from pytest_ddp.system.stdlib import os, signal


class Signals(NamedTuple):
    """The handler of Ctrl-C, which the terminal sends to its whole process group."""

    interrupt: Any

    @classmethod
    def take(cls) -> Signals:
        """Ignore SIGINT in this process, and keep its former handler."""
        return cls(signal.signal(signal.SIGINT, signal.SIG_IGN))

    def restore(self) -> None:
        """Restore the former handler of the service in a fork."""
        signal.signal(signal.SIGINT, self.interrupt)


def environment(variables: dict[str, str]) -> None:
    """Set exactly these variables."""
    for name in public_os.environ.keys() - variables.keys():
        del public_os.environ[name]
    public_os.environ.update(variables)


def streams(descriptors: list[int]) -> None:
    """Make these standard input, output and error, as Python opens them.

    multiprocessing closes standard input and replaces it by ``/dev/null``.
    """
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)  # type: ignore[misc]


def _stream(descriptor: int, before: Any) -> io.TextIOWrapper:
    unbuffered = before.write_through  # python -u
    raw: Any = open(descriptor, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    lines = descriptor == 2 or raw.isatty()
    return io.TextIOWrapper(
        raw, before.encoding, before.errors, line_buffering=lines, write_through=unbuffered
    )


def main_module() -> None:
    """Make ``__main__`` an empty module, which multiprocessing fills."""
    sys.modules["__main__"] = ModuleType("__main__")
