"""Findings about the operating system: network, directories, memory, limits, leftovers."""

from __future__ import annotations

import contextlib
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from pytest_ddp.extensions.doctor.findings import CheckResult, note, ok, stop
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE
from pytest_ddp.system import machine, support, tempfiles
from pytest_ddp.system.stdlib import os, shutil, tempfile

_THREADS_PER_RANK = 8
"""gloo's, the link's and torch's, with some room; the kernel counts threads as processes."""
_FEW_THREADS = 4 * _THREADS_PER_RANK
_SMALL_SHM = 1 << 30
"""Bytes. Docker's default is 64 MiB, which a few batches of images fill."""


def findings() -> list[CheckResult]:
    """All findings that need no torch."""
    return [_kernel(), _loopback(), _tempdir(), _shm(), _descriptors(), _processes(), *_leftovers()]


def _kernel() -> CheckResult:
    text = f"{platform.system()} {platform.release()}, {platform.machine()}, {_cores()} cores"
    problem = support.problem()
    return stop("system", text, problem) if problem else ok("system", text)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _loopback() -> CheckResult:
    if fault := machine.loopback_problem():
        return stop("network", fault.cause, fault.fix)
    return ok("network", "lo is up")


def _tempdir() -> CheckResult:
    topic = "TMPDIR"
    try:
        directory = tempfile.gettempdir()
    except OSError as error:
        return stop(topic, f"there is no temporary directory: {error}", "set TMPDIR to one")
    if fault := machine.tempdir_problem():
        return stop(topic, fault.cause, fault.fix)
    free = shutil.disk_usage(directory).free
    return ok(
        topic,
        f"{directory}, {_size(free)} free; its path has {len(os.fsencode(directory))} characters "
        f"(at most {tempfiles.LONGEST_TEMPDIR})",
    )


def _shm(path: str = "/dev/shm") -> CheckResult:
    fix = "docker run --shm-size=2g (or --ipc=host), in Kubernetes an emptyDir of medium Memory"
    if not os.access(path, os.W_OK):
        return note(path, "missing, or nothing can be written: DataLoader workers will fail", fix)
    usage = shutil.disk_usage(path)
    text = f"{_size(usage.total)}, {_size(usage.free)} free"
    if usage.free < _SMALL_SHM:
        why = f"{text}: DataLoader workers put batches there, and die of SIGBUS when it is full"
        return note(path, why, fix)
    return ok(path, text)


def _descriptors() -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return ok("descriptors", "any number of open files")
    ranks = max(0, hard - tempfiles.BESIDE) // tempfiles.PER_RANK
    text = (
        f"{soft} open files at most, and {hard} where ranks need them (the hard limit): enough for "
        f"some {ranks} ranks at a time"
    )
    if ranks >= MAX_LOCAL_WORLD_SIZE:
        return ok("descriptors", text)
    needed = tempfiles.wanted_for(MAX_LOCAL_WORLD_SIZE)
    make = stop if ranks < 2 else note
    return make("descriptors", text, f"ulimit -Hn {needed} before pytest starts, as root")


def _processes() -> CheckResult:
    room = {**_user_limit(), **_group_limit()}
    if not room:
        return ok("processes", "no limit was found")
    where, left = min(room.items(), key=lambda item: item[1])
    text = f"room for {left} more ({where}): enough for some {left // _THREADS_PER_RANK} ranks"
    if left >= MAX_LOCAL_WORLD_SIZE * _THREADS_PER_RANK:
        return ok("processes", text)
    make = stop if left < _FEW_THREADS else note
    fix = "raise it: docker run --pids-limit=-1" if where == "pids.max" else "ulimit -u unlimited"
    return make("processes", text, f"{fix}; each rank has some {_THREADS_PER_RANK} threads")


def _user_limit() -> dict[str, int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not apply this limit to root.
    if soft == resource.RLIM_INFINITY or os.getuid() == 0:
        return {}
    return {"ulimit -u": max(0, soft - _threads_of_user())}


def _threads_of_user() -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count


def _group_limit() -> dict[str, int]:
    """Processes left by the control group's limit, for cgroup v1 and v2."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "pids"):
                continue
            root = Path("/sys/fs/cgroup", controllers)
            # In a container the path is the host's, and the container's own group is the root.
            for group in (root / path.lstrip("/"), root):
                limit = group / "pids.max"
                if limit.exists() and (most := limit.read_text().strip()) != "max":
                    current = int((group / "pids.current").read_text())
                    return {"pids.max": max(0, int(most) - current)}
    return {}


def _leftovers() -> Iterator[CheckResult]:
    with contextlib.suppress(OSError):
        dead = tempfiles.abandoned()
        if not dead:
            yield ok("leftovers", "none of dead sessions")
            return
        names = ", ".join(path.name for path in dead[:3])
        yield note(
            "leftovers",
            f"{len(dead)} folders of killed sessions in {tempfile.gettempdir()}: {names}",
            "none: the next ddp test removes them",
        )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
