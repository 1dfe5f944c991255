"""The launcher of these tests: nothing that it starts may outlive it or keep it waiting."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.reference.launching import LIMIT, launch, stop
from tests.warm import interpreter

STUBBORN = """
import os, signal, sys, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("up", flush=True)
with open(sys.argv[1], "w") as reports:
    reports.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
"""A rank with a worker, neither of which a polite signal ends."""


@pytest.fixture
def stubborn(tmp_path: Path) -> list[Path]:
    """The script and where its processes report, which no process needs to wait for."""
    script, reports = tmp_path / "stubborn.py", tmp_path / "reports"
    script.write_text(STUBBORN)
    os.mkfifo(reports)
    return [script, reports]


@pytest.fixture
def reports(stubborn: list[Path]) -> Iterator[int]:
    descriptor = os.open(stubborn[1], os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def pids(reports: int, count: int) -> list[int]:
    """The first that are reported."""
    text = b""
    while text.count(b"\n") < count:
        assert select.select([reports], [], [], LIMIT)[0], f"only {text!r} reported"
        text += os.read(reports, 4096)
    return list(map(int, text.split()))


def test_the_end_and_both_outputs_of_a_program_are_reported() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = launch("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert done.output == "out\nerr\n"


def test_a_program_does_not_take_itself_for_a_rank_of_the_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PL_TRAINER_GPUS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("RANKED", "kept")
    done = launch("-c", "import os; print(*sorted(os.environ))", env={"MORE": "1"})
    names = set(done.stdout.split())
    assert names & {"RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "RANKED"} == {
        "RANKED"
    }
    assert {"MORE", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"} <= names


def test_a_program_that_is_late_fails_with_what_it_printed_and_is_gone(
    stubborn: list[Path], reports: int
) -> None:
    with pytest.raises(pytest.fail.Exception, match="ran longer than 5 s") as failure:
        launch(*stubborn, limit=5.0)
    assert str(failure.value).count("up\n") == 2
    assert not [pid for pid in pids(reports, 2) if psutil.pid_exists(pid)]


def test_ranks_of_torchrun_that_ignore_its_signals_are_ended_with_their_workers(
    stubborn: list[Path], reports: int
) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with open(os.devnull, "r+") as nothing:
        launcher = interpreter.start(
            [*command, *map(str, stubborn)],
            cwd=Path.cwd(),
            env=os.environ,
            stdin=nothing.fileno(),
            stdout=nothing.fileno(),
            stderr=nothing.fileno(),
        )
    try:
        family = [launcher.pid, *pids(reports, 4)]
    finally:
        stop(launcher)
    assert not [pid for pid in family if psutil.pid_exists(pid)]
