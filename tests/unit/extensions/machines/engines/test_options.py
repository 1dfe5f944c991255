"""What ``--ddp-machines`` may hold."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.machines.engines import options as module
from pytest_ddp.extensions.machines.engines.options import (
    EngineName,
    MachineOptions,
    Machines,
    check_machines_or_none,
    check_program_or_none,
)
from pytest_ddp.settings.options import Options


@pytest.mark.parametrize(
    ("text", "machines"),
    [
        ("", None),
        ("torchrun", Machines(EngineName.TORCHRUN)),
        ("slurm", Machines(EngineName.SLURM)),
        ("ray", Machines(EngineName.RAY)),
        ("ray:3", Machines(EngineName.RAY, count=3)),
        ("ssh:a", Machines(EngineName.SSH, hosts=("a",))),
        ("ssh:me@a, b,", Machines(EngineName.SSH, hosts=("me@a", "b"))),
    ],
)
def test_what_is_understood(text: str, machines: Machines | None) -> None:
    assert check_machines_or_none(text) == machines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "it is torchrun, ray, ray:N") for text in ("mpi", "Ray", "slurm:2", 3)),
        *((f"ray:{n}", "ray:N has a number of machines") for n in ("", "zero", 0, 4097, -1)),
        *((text, "which hosts? Name those beside this") for text in ("ssh", "ssh:", "ssh:,")),
        ("ssh:a,b,a", "a is named twice; each machine has one agent"),
        ("ssh:a,-v", "-v is an option of ssh, not a host"),
    ],
)
def test_what_is_not(text: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_machines_or_none(text)
    assert str(caught.value).startswith(words)


def test_an_interpreter_has_an_absolute_path() -> None:
    assert check_program_or_none("") is None
    assert check_program_or_none("/opt/python") == "/opt/python"
    with pytest.raises(ValueError, match="an absolute path there"):
        check_program_or_none("python3.11")


def test_more_ranks_than_one_machine_takes_need_machines(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "ddp_world_size", "128")
    with pytest.raises(pytest.UsageError) as caught:
        Options.from_config(pytestconfig)
    text = " ".join(str(caught.value).split())
    assert text.startswith("--ddp-world-size=128: one machine takes a whole number of ranks from 1")
    several = MachineOptions(Machines(EngineName.SLURM), None, None)
    monkeypatch.setattr(module, "read", lambda _: several)
    assert Options.from_config(pytestconfig).world_size == 128
