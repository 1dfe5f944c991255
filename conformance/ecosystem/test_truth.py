"""What a part is accused of is shown by a script that has no code of this project."""

from __future__ import annotations

import ast
import multiprocessing
import os
import runpy
import socket
import sys
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from conformance.ecosystem.frame.libraries import LIBRARIES, Library
from conformance.ecosystem.frame.parts import TRUTH
from conformance.ecosystem.servers import Server

INSTALLED = [library for library in LIBRARIES if library.installed]
SCRIPTS = [
    pytest.param(script, id=str(script.relative_to(TRUTH)))
    for library in INSTALLED
    for script in sorted((TRUTH / library.module).glob("*.py"))
]


LIMIT = 120.0
"""Seconds for a rank."""

SERVERS = {library.module: Server("torch", library.module) for library in INSTALLED}
"""Most of a script's time would be the imports of two interpreters. One for each library, since
one that is imported may change another."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_fault_is_there(script: Path, tmp_path: Path) -> None:
    printed = on_two_ranks(script, tmp_path / "printed")
    shown = [line for line in printed.splitlines() if line.startswith(("broken: ", "kept: "))]
    assert len(shown) == 1, printed
    assert shown[0].startswith("broken: "), f"{script} no longer shows its fault: {shown[0]}"


def free_port() -> int:
    """A free port below those that the kernel gives to other programs, before a rank listens
    here.
    """
    for port in range(10000 + os.getpid() * 37 % 20000, 32768):
        with socket.socket() as free, suppress(OSError):
            free.bind(("localhost", port))
            return port
    raise OSError("no port is free")


def on_two_ranks(script: Path, output: Path) -> str:
    """What they print, in the environment that torchrun would give them."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    place |= {"TORCHELASTIC_RUN_ID": "truth", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with ExitStack() as ranks:
        for rank in ("0", "1"):
            environment = os.environ | place | {"RANK": rank, "LOCAL_RANK": rank}
            process = SERVERS[script.parent.name].process(
                as_rank, (script, dict(environment), output)
            )
            process.start()
            ranks.callback(process.kill)
            ranks.callback(process.join, LIMIT)
    return output.read_text()


def as_rank(script: Path, environment: dict[str, str], output: Path) -> None:
    with output.open("ab") as file:
        os.dup2(file.fileno(), sys.__stdout__.fileno())
        os.dup2(file.fileno(), sys.__stderr__.fileno())
    os.environ.update(environment)
    multiprocessing.set_start_method(
        None, force=True
    )  # a server's children would ask it for theirs
    warnings.simplefilter("ignore")
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_uses_nothing_of_ours(script: Path) -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
    }
    assert not imported & {"ddp_conformance", "ddp_reference", "pytest_ddp", "conformance"}


@pytest.mark.parametrize("library", INSTALLED, ids=lambda library: library.module)
def test_every_script_belongs_to_a_part(library: Library) -> None:
    used = {b.script for part in library.parts for b in part.breaches}
    assert used == set((TRUTH / library.module).glob("*.py"))
