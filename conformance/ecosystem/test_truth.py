"""What a part is accused of is shown by a script that has no code of this project."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from conformance.ecosystem.frame.libraries import LIBRARIES, Library
from conformance.ecosystem.frame.parts import TRUTH

INSTALLED = [library for library in LIBRARIES if library.installed]
SCRIPTS = [
    pytest.param(script, id=str(script.relative_to(TRUTH)))
    for library in INSTALLED
    for script in sorted((TRUTH / library.module).glob("*.py"))
]


LIMIT = 300.0
"""Seconds for a script: most of them are the imports of two processes."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_fault_is_there(script: Path) -> None:
    printed = on_two_ranks(script)
    told = [line for line in printed.splitlines() if line.startswith(("broken: ", "kept: "))]
    assert len(told) == 1, printed
    assert told[0].startswith("broken: "), f"{script} does not show its fault any more: {told[0]}"


def on_two_ranks(script: Path) -> str:
    """What they print, started as by torchrun, whose own process would take half as long again."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    place |= {"TORCHELASTIC_RUN_ID": "truth", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script)]
    with tempfile.TemporaryFile("w+") as output, ExitStack() as ranks:
        for rank in ("0", "1"):
            environment = os.environ | place | {"RANK": rank, "LOCAL_RANK": rank}
            options: dict[str, Any] = {"stdout": output, "stderr": output, "env": environment}
            process = ranks.enter_context(subprocess.Popen(command, stdin=DEVNULL, **options))
            ranks.callback(process.kill)
            ranks.callback(process.wait, LIMIT)
        ranks.close()
        output.seek(0)
        return output.read()


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
