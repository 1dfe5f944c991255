"""The options of this extension. Imported by every pytest run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest

from pytest_ddp.settings import rules
from pytest_ddp.settings.options import Setting
from pytest_ddp.settings.rules import MAX_WORLD_SIZE

MACHINES = "it is torchrun, ray, ray:N, slurm or ssh:HOST,HOST,..."


class EngineName(enum.StrEnum):
    """What provides the machines that ranks are spread over."""

    TORCHRUN = "torchrun"
    RAY = "ray"
    SLURM = "slurm"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class Machines:
    """An engine, and which of its machines."""

    engine: EngineName
    hosts: tuple[str, ...] = ()
    """The hosts of ssh, as its command takes them, without the machine of pytest."""
    count: int | None = None
    """How many machines of Ray's are used, with that of pytest; None for all."""


def check_machines_or_none(value: object) -> Machines | None:
    """Machines, as text; None for an empty one."""
    if value == "":
        return None
    name, colon, rest = str(value).partition(":")
    match name:
        case "torchrun" | "slurm" if not colon:
            return Machines(EngineName(name))
        case "ray":
            return Machines(EngineName.RAY, count=_count(rest) if colon else None)
        case "ssh":
            return Machines(EngineName.SSH, hosts=_hosts(rest))
    raise ValueError(MACHINES)


def _count(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_WORLD_SIZE:
        return int(text)
    raise ValueError(f"ray:N has a number of machines, that of pytest included, not {text!r}")


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(",") if host.strip())
    if not hosts:
        raise ValueError(
            "which hosts? Name those beside this machine, as ssh takes them: ssh:HOST,HOST"
        )
    if wrong := next((host for host in hosts if host.startswith("-")), None):
        raise ValueError(f"{wrong} is an option of ssh, not a host; write it into ~/.ssh/config")
    if again := next((host for host in hosts if hosts.count(host) > 1), None):
        raise ValueError(f"{again} is named twice; each machine has one agent")
    return hosts


def check_program_or_none(value: object) -> str | None:
    """A program's absolute path; None for an empty text."""
    if value == "":
        return None
    if isinstance(value, str) and value.startswith("/"):
        return value
    raise ValueError("it is an absolute path there, such as /opt/venv/bin/python")


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The options about machines of the command line and the ini file, for the whole session."""

    machines: Machines | None
    """The engine that has the machines; None for this machine alone."""
    machines_python: str | None
    """The interpreter of the other machines; None if it is where this one is."""
    ranks_per_machine: int | None
    """How many ranks a machine takes; None for an equal share."""


_GROUP = "ddp ranks on several machines"

SETTINGS = (
    Setting(
        *("machines", "ENGINE", "string", "", check_machines_or_none, MACHINES),
        group=_GROUP,
        help="spread ranks over machines: those where torchrun started pytest, one process each; "
        "nodes of a ray cluster, or N of them (ray:N); those of a slurm allocation; this one and "
        "hosts that ssh reaches (ssh:HOST,HOST)",
    ),
    Setting(
        *("machines_python", "PATH", "string", "", check_program_or_none, ""),
        group=_GROUP,
        help="the interpreter on machines that ray, slurm and ssh reach, if it is not where this "
        "one is",
    ),
    Setting(
        *("ranks_per_machine", "N", "string", ""),
        *(rules.check_local_size_or_none, rules.LOCAL_SIZE),
        group=_GROUP,
        help="with --ddp-machines: fill machines with N ranks each, in order, instead of spreading "
        "each test over all of them",
    ),
)

_READ = pytest.StashKey[MachineOptions]()


def read(config: pytest.Config) -> MachineOptions:
    """Read these options once; the command line wins over the ini file.

    Raises:
        pytest.UsageError: an option's value is not allowed.
    """
    if _READ not in config.stash:
        values = {setting.name: setting.read(config, config.option) for setting in SETTINGS}
        config.stash[_READ] = MachineOptions(**values)
    return config.stash[_READ]
