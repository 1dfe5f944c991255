"""The backends that torch has in this rank, and what their counters allow to conclude.

A proof rests on the sequence numbers of a backend's collectives. torch numbers those of gloo and
NCCL, with the same numbers on all ranks, from Python and C++. Nothing is known of any other
backend, nor of a group with several: a wait on it is left to the deadline.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_OF_THE_MACHINE = frozenset({"nccl", "xccl", "ucc", "hccl"})
"""Backends whose presence depends on the machine and on how torch was built: a test that uses one
is skipped where it is missing. Any other unknown name is a typo, or was not registered."""


class Promises(NamedTuple):
    """What can be relied on for the operations of a process group."""

    numbered: bool
    """The group's sequence number counts every collective."""
    messages_numbered: bool
    """Whether the number that counts collectives counts sends and receives, too."""
    recorded: bool
    """The flight recorder has every collective under that number, and a thread that waits for one
    sleeps."""


NO_PROMISES = Promises(numbered=False, messages_numbered=False, recorded=False)
_KNOWN = {
    "gloo": Promises(numbered=True, messages_numbered=True, recorded=True),
    # ProcessGroupNCCL.hpp: sends and receives have a number of their own, seqP2P_. The stream
    # waits, not the thread, and the records are in another recorder, for CUDA's events.
    "nccl": Promises(numbered=True, messages_numbered=False, recorded=False),
}


_DELIVERS = frozenset({"gloo", "nccl", "xccl", "hccl", "ucc", "mpi"})
"""Backends whose sends reach a receive; ``fake`` and its like complete a send without any peer."""


def delivers(group: Any) -> bool:
    """Whether each send on a group needs a matching receive."""
    names = names_of(group)
    return bool(names) and names <= _DELIVERS


def matches_tags(group: Any) -> bool:
    """Whether a receive takes only a message with its own tag; NCCL's takes the next message."""
    return names_of(group) == {"gloo"}


def names_of(group: Any) -> set[str]:
    """The names of a group's backends; empty for a backend in Python that is itself the group."""
    try:
        return {group._get_backend(device).name() for device in group._device_types}
    except (RuntimeError, AttributeError, NotImplementedError):
        return set()


def promises_of(group: Any) -> Promises:
    """What can be relied on for the backends of a group."""
    names = names_of(group)
    try:
        # For a backend that a package registers under its own name, and for several backends in
        # one group, torch has no number, or only that of one of them.
        group._get_sequence_number_for_group()
    except RuntimeError:
        return NO_PROMISES
    return _KNOWN.get(names.pop(), NO_PROMISES) if len(names) == 1 else NO_PROMISES


class MissingBackend(NamedTuple):
    """A backend that this rank does not have."""

    reason: str
    is_of_the_machine: bool
    """True if another machine may have it: the test is then skipped instead of failed."""


def missing(backend: str) -> MissingBackend | None:
    """The first backend that torch lacks of a backend argument as torch takes it, or None."""
    for name in _names(backend):
        if not _is_there(name):
            return _missing(name)
    return None


def _is_there(name: str) -> bool:
    if name == "fake" and name.upper() not in dist.Backend._plugins:
        # torch always lists it, but registers it in a module of its own.
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    known = getattr(dist, f"is_{name}_available", None)
    return known() if known is not None else name.upper() in dist.Backend._plugins


def _missing(name: str) -> MissingBackend:
    there = ", ".join(sorted(_available()))
    if name in _OF_THE_MACHINE:
        built = f"torch {torch.__version__} has no backend {name} here"
        return MissingBackend(f"{built}; there are {there}", is_of_the_machine=True)
    meant = "".join(difflib.get_close_matches(name, _available(), n=1))
    hint = f" Did you mean {meant}?" if meant else ""
    return MissingBackend(
        f"no backend is called {name}; there are {there}.{hint}\n"
        "If a package registers it, import that package in a conftest.py:\n"
        "each rank imports it before its process group is built",
        is_of_the_machine=False,
    )


def _available() -> Iterator[str]:
    listed = dict.fromkeys(str(name) for name in dist.Backend.backend_list)
    for name in listed.keys() - {dist.Backend.UNDEFINED, "mpi"}:
        if name == "fake" or _is_there(name):
            yield name


def _names(backend: str) -> list[str]:
    return [pair.rpartition(":")[2] for pair in backend.split(",")]
