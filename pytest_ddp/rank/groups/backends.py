"""Which backends torch has in this rank, and what may be concluded from what they count.

A proof rests on what a backend tells of its collectives. Of gloo and NCCL torch numbers each of
them, alike on all ranks, from Python and C++. Of any other backend, and of a group of several,
nothing is known, and a wait on it is left to the deadline.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_OF_THE_MACHINE = frozenset({"nccl", "xccl", "ucc", "hccl"})
"""Backends that are there or not with the machine and with how torch was built: a test that
asks for one is skipped elsewhere. Any other name is a slip of the pen, or was not registered."""


class Promises(NamedTuple):
    """What holds for the operations of a process group."""

    numbered: bool
    """Its sequence number counts every collective."""
    messages_numbered: bool
    """The same number counts sends and receives, which are no collectives."""
    recorded: bool
    """The flight recorder tells every collective by that number, and who waits for one sleeps."""


NONE = Promises(numbered=False, messages_numbered=False, recorded=False)
_KNOWN = {
    "gloo": Promises(numbered=True, messages_numbered=True, recorded=True),
    # ProcessGroupNCCL.hpp: sends and receives have a number of their own, seqP2P_. A wait is the
    # stream's and not the thread's, and the records are in another recorder, for CUDA's events.
    "nccl": Promises(numbered=True, messages_numbered=False, recorded=False),
}


_DELIVERS = frozenset({"gloo", "nccl", "xccl", "hccl", "ucc", "mpi"})
"""Backends whose sends reach a receive; ``fake`` and others that talk to nobody complete them."""


def delivers(group: Any) -> bool:
    """Whether each send on a group needs a receive."""
    names = names_of(group)
    return bool(names) and names <= _DELIVERS


def matches_tags(group: Any) -> bool:
    """Whether a receive takes a message of its own tag; NCCL's take the next one."""
    return names_of(group) == {"gloo"}


def names_of(group: Any) -> set[str]:
    """The names of a group's backends; none of one that is a backend itself, in Python."""
    try:
        return {group._get_backend(device).name() for device in group._device_types}
    except (RuntimeError, AttributeError, NotImplementedError):
        return set()


def name_of(group: Any) -> str:
    """A group's name; of one that is a backend in Python, the one in torch's books."""
    try:
        name: str = group.group_name
    except RuntimeError:
        name = dist.distributed_c10d._world.pg_names.get(group, "")
    return name


def promises_of(group: Any) -> Promises:
    """What a group's backends promise."""
    names = names_of(group)
    try:
        # Of a backend that a package registers under a name of its own, and of several in one
        # group, torch tells no number, or that of one of them.
        group._get_sequence_number_for_group()
    except RuntimeError:
        return NONE
    return _KNOWN.get(names.pop(), NONE) if len(names) == 1 else NONE


class Missing(NamedTuple):
    """A backend that this rank does not have."""

    reason: str
    is_of_the_machine: bool
    """Whether another machine may have it, so that the test is skipped and not wrong."""


def missing(backend: str) -> Missing | None:
    """What torch lacks for a backend, given as torch takes it; None if nothing."""
    for name in _names(backend):
        if not _is_there(name):
            return _missing(name)
    return None


def _is_there(name: str) -> bool:
    if name == "fake" and name.upper() not in dist.Backend._plugins:
        # torch lists it always and registers it in a module of its own.
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    known = getattr(dist, f"is_{name}_available", None)
    return known() if known is not None else name.upper() in dist.Backend._plugins


def _missing(name: str) -> Missing:
    there = ", ".join(sorted(_available()))
    if name in _OF_THE_MACHINE:
        built = f"torch {torch.__version__} has no backend {name} here"
        return Missing(f"{built}; there are {there}", is_of_the_machine=True)
    return Missing(
        f"no backend is called {name}; there are {there}. If a package registers it, import that "
        f"in a conftest.py, where each rank does so before its process group is built",
        is_of_the_machine=False,
    )


def _available() -> Iterator[str]:
    listed = dict.fromkeys(str(name) for name in dist.Backend.backend_list)
    for name in listed.keys() - {dist.Backend.UNDEFINED, "mpi"}:
        if name == "fake" or _is_there(name):
            yield name


def _names(backend: str) -> list[str]:
    return [pair.rpartition(":")[2] for pair in backend.split(",")]
