"""GPUs counted without torch, and leased to one process at a time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

import pytest

from pytest_ddp.launch import gpus
from pytest_ddp.launch.gpus import Gpu, lease, parse_smi, select_visible, visible_devices

Machine: TypeAlias = Callable[..., None]
A, B, C = "GPU-aaaa1111-0", "GPU-bbbb2222-0", "GPU-aabb3333-0"
MIG1, MIG2 = "MIG-11111111-0", "MIG-22222222-0"
WHOLE = (Gpu(A), Gpu(B), Gpu(C))
CUT = (Gpu(A, (MIG1, MIG2)),)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Make this a machine with the GPUs that its nvidia-smi lists."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus.physical_gpus.cache_clear()

    def install(count: int, status: int = 0) -> None:
        lines = [f"GPU {index}: NVIDIA H200 (UUID: GPU-{index}f-0)" for index in range(count)]
        script = folder / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ncat <<END\n{chr(10).join(lines)}\nEND\nexit {status}\n")
        script.chmod(0o755)

    yield install
    gpus.physical_gpus.cache_clear()


# ---------------------------------------------------------- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("void", ()),
        ("0", (A,)),
        ("0,2", (A, C)),
        ("2,0", (C, A)),
        (" 1 , 2 ", (B, C)),
        ("0,-1,2", (A,)),
        ("0,7,2", (A,)),
        ("0,,2", (A,)),
        ("1gpu,+2", (B, C)),
        ("1,1", ()),
        (A, (A,)),
        (f"{C},{A}", (C, A)),
        ("GPU-b,GPU-aaaa", (B, A)),
        ("GPU-a", ()),
        ("GPU-dddd,GPU-b", ()),
        (f"{A},{A}", ()),
        ("GPU-", ()),
        ("MIG-1", ("MIG-1",)),
        ("MIG-1,MIG-2", ("MIG-1",)),
    ],
)
def test_visible_devices_as_cuda_reads_them(setting: str | None, expected: tuple[str, ...]) -> None:
    assert select_visible(WHOLE, setting) == expected


@pytest.mark.parametrize("setting", [None, "0", A, "MIG-1"])
def test_no_gpu_is_visible_where_there_is_none(setting: str | None) -> None:
    assert select_visible((), setting) == ()


def test_a_cut_gpu_is_one_instance_for_a_process() -> None:
    assert select_visible(CUT, None) == (MIG1,)
    assert select_visible(CUT, "0") == (MIG1,)
    assert select_visible(CUT, f"{MIG2},{MIG1}") == (MIG2,)
    assert select_visible((Gpu(B), *CUT), None) == (B,)


# ------------------------------------------------------------ what the driver says


def test_listing_of_nvidia_smi() -> None:
    listing = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: {A})
  MIG 1g.5gb     Device  0: (UUID: {MIG1})
  MIG 1g.5gb     Device  1: (UUID: {MIG2})
GPU 1: NVIDIA A100-SXM4-40GB (UUID: {B})
"""
    assert parse_smi(listing) == (*CUT, Gpu(B))
    assert parse_smi("No devices were found\n") == ()


def test_nvidia_smi_is_asked_once(machine: Machine) -> None:
    machine(2)
    assert visible_devices() == ("GPU-0f-0", "GPU-1f-0")
    machine(3)
    assert len(visible_devices()) == 2


def test_the_environment_is_read_every_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(3)
    assert len(visible_devices()) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert visible_devices() == ("GPU-2f-0",)


def test_a_broken_driver_has_no_gpus(machine: Machine) -> None:
    machine(2, status=9)
    assert visible_devices() == ()


def test_files_of_the_driver_without_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    for address, uuid in [("0000:3b:00.0", "GPU-????????-????"), ("0000:1a:00.0", "GPU-1a2b-0c")]:
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        folder.joinpath("information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n"
        )
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "gpus")
    assert visible_devices() == ("GPU-1a2b-0c", "0000:3b:00.0")


@pytest.mark.parametrize(
    ("library", "count"),
    [
        ("libtorch_cuda.so", 2),
        ("libtorch_cpu.so", 0),
        ("libtorch_cuda_linalg.so", 0),
        ("libtorch_hip.so", 0),
        ("libtorch_xpu.so", 0),
    ],
)
def test_gpus_do_not_count_for_a_torch_without_cuda(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    count: int,
) -> None:
    machine(2)
    folder = tmp_path / "site" / "torch"
    folder.joinpath("lib").mkdir(parents=True)
    folder.joinpath("__init__.py").touch()
    folder.joinpath("lib", library).touch()
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    gpus.torch_build.cache_clear()
    try:
        assert gpus.count_gpus() == count
    finally:
        gpus.torch_build.cache_clear()
    assert "torch" not in sys.modules


# ---------------------------------------------------------------------- leases

HOLDER = """
import sys
from pathlib import Path
from pytest_ddp.launch.gpus import lease

print("asks", flush=True)
with lease(int(sys.argv[2]), Path(sys.argv[1])) as indices:
    print(*indices, flush=True)
    sys.stdin.readline()
"""

CROWD = """
import os, random, sys
from pathlib import Path
from pytest_ddp.launch.gpus import lease

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
counts = random.Random(seed)
print("asks", flush=True)
sys.stdin.readline()
for _ in range(12):
    with lease(counts.randint(1, 3), folder) as indices:
        for index in indices:
            os.write(log, f"{seed} takes {index}\\n".encode())
        for index in indices:
            os.write(log, f"{seed} gives {index}\\n".encode())
"""


@contextlib.contextmanager
def started(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def asked(process: subprocess.Popen[str]) -> IO[str]:
    """Return the output of a holder that is now at the lease."""
    output = stream(process.stdout)
    assert output.readline() == "asks\n"
    return output


def test_two_processes_get_different_gpus_and_the_third_waits(
    machine: Machine, tmp_path: Path
) -> None:
    machine(2)
    with started(HOLDER, tmp_path, 1) as first, started(HOLDER, tmp_path, 1) as second:
        got = {asked(first).readline(), asked(second).readline()}
        assert got == {"0\n", "1\n"}
        with started(HOLDER, tmp_path, 2) as third:
            waiting = asked(third)
            assert not select.select([waiting], [], [], 0.3)[0]
            stream(first.stdin).write("\n")
            assert first.wait(30) == 0
            assert not select.select([waiting], [], [], 0.3)[0]
            stream(second.stdin).write("\n")
            assert waiting.readline() == "0 1\n"


def test_a_killed_process_leaves_no_lease(machine: Machine, tmp_path: Path) -> None:
    machine(1)
    with started(HOLDER, tmp_path, 1) as first:
        assert asked(first).readline() == "0\n"
        first.send_signal(signal.SIGKILL)
        with lease(1, tmp_path) as indices:
            assert indices == (0,)


def test_a_crowd_never_shares_a_gpu_and_never_locks_up(machine: Machine, tmp_path: Path) -> None:
    machine(3)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(started(CROWD, tmp_path, seed)) for seed in (1, 2, 3)]
        for process in crowd:
            asked(process)
        for process in crowd:
            stream(process.stdin).write("\n")
        assert [process.wait(90) for process in crowd] == [0, 0, 0]
    holder: dict[str, str] = {}
    lines = (tmp_path / "log").read_text().splitlines()
    for line in lines:
        who, what, index = line.split()
        if what == "takes":
            assert index not in holder, f"{line}, which {holder[index]} holds"
            holder[index] = who
        else:
            assert holder.pop(index) == who
    assert not holder
    assert {line.split()[0] for line in lines} == {"1", "2", "3"}


def test_the_same_gpu_under_another_setting_is_the_same(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    with lease(1, tmp_path) as first:
        assert first == (0,)  # the third GPU of the machine
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2f,GPU-0f")
        with lease(1, tmp_path) as second:
            assert second == (1,)


def test_a_lease_ends_with_its_block(machine: Machine, tmp_path: Path) -> None:
    machine(2)
    for _ in range(2):
        with contextlib.suppress(RuntimeError), lease(2, tmp_path) as indices:
            assert indices == (0, 1)
            raise RuntimeError


def test_nothing_is_touched_for_no_gpus(tmp_path: Path) -> None:
    with lease(0, tmp_path / "absent") as indices:
        assert indices == ()
    assert not (tmp_path / "absent").exists()


def test_more_than_there_are(machine: Machine, tmp_path: Path) -> None:
    machine(2)
    with pytest.raises(ValueError, match="3 GPUs are needed, 2 are visible"), lease(3, tmp_path):
        pytest.fail("the block of an impossible lease ran")


# -------------------------------------------------------------------- directory


def test_the_default_directory_is_private(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        with lease(1):
            (folder,) = [path for path in tmp_path.iterdir() if path.name != "bin"]
    finally:
        os.umask(before)
    assert folder.name == f"pytest-ddp-gpus-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == {"GPU-0f-0.lock", "queue.lock"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_directory_of_ours_that_is_open_to_others_is_closed(
    machine: Machine, tmp_path: Path
) -> None:
    machine(1)
    tmp_path.chmod(0o777)
    with lease(1, tmp_path):
        assert tmp_path.stat().st_mode & 0o777 == 0o700


def somebody_elses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    us = os.getuid()
    monkeypatch.setattr("pytest_ddp.system.stdlib.os.getuid", lambda: us + 1)


def a_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.with_name("elsewhere").mkdir()
    folder.symlink_to(folder.with_name("elsewhere"))


def a_dangling_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.symlink_to(folder.with_name("nowhere"))


def a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.touch()


@pytest.mark.parametrize("planted", [somebody_elses, a_link, a_dangling_link, a_file])
def test_a_planted_directory_is_refused(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planted: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    machine(1)
    planted(tmp_path / "locks", monkeypatch)
    folder = tmp_path / "locks"
    with pytest.raises(pytest.UsageError, match="set TMPDIR") as caught, lease(1, folder):
        pytest.fail("leased in a directory that is not ours")
    assert str(folder) in str(caught.value)
