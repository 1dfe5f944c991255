"""Machines that are simulated by the environment variables of launchers alone.

Code that looks for its place recognises a machine by local ranks, which start at 0 on each.
Names and values are those of torchrun, of Lightning's own launcher, and of SLURM's srun.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank on machines with equally many ranks each."""

    rank: int
    world_size: int
    machines: int = 1

    @property
    def ranks_here(self) -> int:
        """Ranks on each machine."""
        return self.world_size // self.machines

    @property
    def machine(self) -> int:
        """Number of the machine, from 0."""
        return self.rank // self.ranks_here

    @property
    def local_rank(self) -> int:
        """Rank on its machine."""
        return self.rank % self.ranks_here


def several_machines(world_size: int) -> int:
    """The smallest number of machines above 1 that share the ranks evenly; 1 for one rank."""
    return next((n for n in range(2, world_size + 1) if world_size % n == 0), 1)


def ranks_of_machines(world_size: int) -> list[range]:
    """The ranks of each machine, for :func:`several_machines`."""
    here = world_size // several_machines(world_size)
    return [range(first, first + here) for first in range(0, world_size, here)]


def environment_of(launcher: str, place: Place) -> dict[str, str]:
    """The variables that ``torchrun``, ``lightning`` (without RANK) or ``slurm`` sets."""
    try:
        variables = _LAUNCHERS[launcher](place)
    except KeyError:
        known = ", ".join(_LAUNCHERS)
        raise ValueError(f"unknown launcher {launcher!r}; known: {known}") from None
    return {name: str(value) for name, value in variables.items()}


def _torchrun(place: Place) -> Mapping[str, object]:
    return {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.ranks_here,
        "GROUP_RANK": place.machine,
        "GROUP_WORLD_SIZE": place.machines,
        "ROLE_NAME": "default",
        "ROLE_RANK": place.rank,
        "ROLE_WORLD_SIZE": place.world_size,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }


def _lightning(place: Place) -> Mapping[str, object]:
    return {
        "NODE_RANK": place.machine,
        "LOCAL_RANK": place.local_rank,
        "WORLD_SIZE": place.world_size,
    }


def _slurm(place: Place) -> Mapping[str, object]:
    return {
        "SLURM_JOB_ID": 1,
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": place.world_size,
        "SLURM_NPROCS": place.world_size,
        "SLURM_PROCID": place.rank,
        "SLURM_LOCALID": place.local_rank,
        "SLURM_NODEID": place.machine,
        "SLURM_NNODES": place.machines,
        "SLURM_JOB_NUM_NODES": place.machines,
        "SLURM_NTASKS_PER_NODE": place.ranks_here,
        "SLURM_STEP_ID": 0,
    }


_LAUNCHERS: dict[str, Callable[[Place], Mapping[str, object]]] = {
    "torchrun": _torchrun,
    "lightning": _lightning,
    "slurm": _slurm,
}

_NAMES = frozenset({*_torchrun(Place(0, 1)), *_lightning(Place(0, 1))})
_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_", "SLURM_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")


def forget_launcher() -> None:
    """Delete from this process all variables in which launchers give a rank its place."""
    for name in [name for name in os.environ if name in _NAMES or name.startswith(_PREFIXES)]:
        del os.environ[name]


@contextmanager
def launched_by(launcher: str, place: Place) -> Iterator[None]:
    """A block in which the variables of this launcher are set, and of no other one."""
    with mock.patch.dict(os.environ):
        forget_launcher()
        os.environ.update(environment_of(launcher, place))
        yield
