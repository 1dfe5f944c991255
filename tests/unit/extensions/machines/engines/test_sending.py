"""The role of an agent, and an interpreter that reads it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.extensions.machines.engines import sending
from pytest_ddp.extensions.machines.engines.engine import MeetingPoint

MEETING = MeetingPoint("127.0.0.1", 1, "a secret", is_users=False)


def role(python: str | None = None) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(sending.role_for_stdin(3, MEETING, python))
    return record


def run(record: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        sending.command(None),
        input=json.dumps(record) + "\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_variables_of_a_machine_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"HOME", "TMPDIR", "SSH_AUTH_SOCK", "SLURM_NODEID", "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"}
    own |= {"ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"}
    others = {"PATH", "PYTHONPATH", "HOMEPAGE", "NCCL_DEBUG", "MY_HOME", "CUDA_DEVICE_ORDER"}
    for name in own | others | {"PYTEST_DDP_SECRET"}:
        monkeypatch.setenv(name, "x")
    found = role()["environment"]
    assert others <= found.keys()
    assert not (own | {"PYTEST_DDP_SECRET"}) & found.keys()


def test_another_interpreter_has_a_path_of_its_own() -> None:
    assert role()["path"] == sys.path
    assert role("/opt/python")["path"] == []
    assert sending.command("/opt/python")[0] == "/opt/python"


def test_no_command_line_has_a_secret() -> None:
    assert MEETING.secret not in " ".join(sending.command(None))
    assert role()["secret"] == MEETING.secret


def test_another_version_is_named_before_anything_of_ours_is_read() -> None:
    ended = run(role() | {"python": "3.9.2", "path": ["/nothing/is/here"]})
    assert ended.returncode == 1
    own = ".".join(map(str, sys.version_info[:3]))
    assert ended.stderr == f"python is {own} there and 3.9.2 on node 0\n"


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    ended = run(role() | {"folder": str(tmp_path / "gone")})
    assert ended.returncode == 1
    words = "pytest-ddp agent of node 3: pytest's folder does not exist here: "
    assert ended.stderr.startswith(words)
    assert str(tmp_path / "gone") in ended.stderr


def test_an_agent_whose_starter_has_ended_ends(tmp_path: Path) -> None:
    """The agent does not try for two minutes to reach a coordinator that may be gone as well."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    ended = run(role() | {"port": port, "folder": str(tmp_path)})
    assert ended.returncode == 1
    assert f"cannot reach node 0 at 127.0.0.1:{port}" in ended.stderr


def test_the_end_of_a_commands_output_is_the_reason() -> None:
    said = "a warning\n\nTraceback\n  File\nModuleNotFoundError: No module named 'torch'\n"
    assert sending.how_it_ended("its command", 1, said) == (
        "its command ended with code 1: Traceback / File / "
        "ModuleNotFoundError: No module named 'torch'"
    )
    assert sending.how_it_ended("its agent", 3, "").endswith("code 3: no output")
