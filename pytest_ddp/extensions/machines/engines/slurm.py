"""The nodes of a SLURM allocation that pytest runs in, by a step on each but its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_ddp.extensions.machines.engines.commands import Commands
from pytest_ddp.extensions.machines.engines.engine import ADDRESS, EngineError
from pytest_ddp.extensions.machines.engines.options import EngineName as Name
from pytest_ddp.extensions.machines.engines.options import Machines
from pytest_ddp.system.stdlib import os, subprocess

_START = (
    "Start it in a batch script (sbatch --nodes=2), or by "
    "salloc --nodes=2 srun --nodes=1 --ntasks=1 --overlap pytest --ddp-machines=slurm"
)
_STEP = (
    *("srun", "--nodes=1", "--ntasks=1", "--job-name=pytest-ddp"),
    # Beside the step in which pytest may run itself, and with all that the job has there.
    *("--overlap", "--cpu-bind=none", "--export=ALL"),
    # Process managers of MPI would take the agent for a rank.
    "--mpi=none",
)
_OF_THE_JOB = re.compile(
    r"SLURM_(GPUS(_PER_(NODE|SOCKET|TASK))?|GPU_BIND|NTASKS_PER_GPU|TRES_PER_TASK)$"
)
"""Variables by which sbatch and salloc make srun request the same for each step: a step on one node
must request neither the GPUs of all nodes nor those of one task. A step that requests none has all
that the job has on its node, except in a job that has its GPUs by ``--exclusive`` alone: there
``SLURM_STEP_GRES`` requests them.

Source: SLURM's "Generic Resource (GRES) Scheduling", "Running Jobs"; srun(1), "INPUT ENVIRONMENT
VARIABLES".
"""


@dataclass
class Slurm(Commands):
    """Starts agents on the other nodes of an allocation."""

    name: ClassVar[Name] = Name.SLURM

    @classmethod
    def for_session(
        cls, machines: Machines, python: str | None, environment: Mapping[str, str]
    ) -> Slurm:
        """Read the variables that SLURM has set.

        Raises:
            EngineError: pytest runs in no allocation, outside of its nodes, or in several tasks.
        """
        if not (nodes := environment.get("SLURM_JOB_NODELIST")):
            raise EngineError(f"SLURM_JOB_NODELIST not set: this is no allocation. {_START}")
        if (tasks := environment.get("SLURM_STEP_NUM_TASKS", "1")) != "1":
            raise EngineError(f"{tasks} tasks run pytest: it is one, and starts agents. {_START}")
        names = _names(nodes)
        own = environment.get("SLURMD_NODENAME", "")
        if own not in names:
            where = f"on {own}" if own else "on no node of SLURM"
            raise EngineError(
                f"pytest runs {where} and not on one of the allocation's ({', '.join(names)}), "
                f"where node 0 has its ranks. {_START}"
            )
        others = [name for name in names if name != own]
        return cls(others, python, environment.get(ADDRESS))

    def _on(self, host: str, command: list[str]) -> list[str]:
        return [*_STEP, f"--nodelist={host}", *command]

    def _environment(self) -> dict[str, str]:
        return {name: text for name, text in os.environ.items() if not _OF_THE_JOB.match(name)}

    def _addresses(self) -> Iterator[str]:
        return map(_address, self.hosts)

    def _way_out(self, host: str, code: int) -> str:
        return f" `srun --overlap --nodes=1 --nodelist={host} true` has to work in this allocation"


def _names(nodes: str) -> list[str]:
    """The hosts of a list such as ``gpu[1-3]``, by SLURM's own command."""
    return _scontrol("show", "hostnames", nodes).split()


def _address(host: str) -> str:
    """The address by which SLURM reaches a node, whose name may be unknown to the resolver."""
    found = re.search(r"\bNodeAddr=(\S+)", _scontrol("--oneliner", "show", "node", host))
    return found[1] if found else host


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise EngineError("there is no scontrol here, though SLURM_JOB_NODELIST is set") from None
    if done.returncode:
        command = " ".join(("scontrol", *arguments))
        raise EngineError(f"`{command}` failed: {done.stderr.strip()}")
    return done.stdout
