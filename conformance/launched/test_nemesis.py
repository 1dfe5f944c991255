"""How a late rank sees that the others are at rest."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Scenario, Work
from ddp_conformance.launched.process import delays, own_waits
from ddp_conformance.launched.start.kept_servers import in_process_of

from pytest_ddp.system import processes


def test_a_rank_that_ends_while_it_is_looked_at_is_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux opens the file of a process that is there, and no longer reads that of one gone."""
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "pid").write_text(str(other.pid))

    original: Any = processes.os.open

    def opened(path: str, flags: int) -> Any:
        """Ends the process once its file is open."""
        descriptor = original(path, flags)
        if path == f"/proc/{other.pid}/task/{other.pid}/stat":
            other.kill()
            other.wait()
        return descriptor

    monkeypatch.setattr(processes.os, "open", opened)
    delays.Nemesis(order_of(0, tmp_path), Journal(tmp_path / "journal")).at_stage()
    assert other.returncode == -signal.SIGKILL


def waits_of_threads(files: Path) -> list[float]:
    """The ends of the waits of five threads, of which one waits for another thread."""
    own_waits.install(files)
    for wait in (
        threading.Event().wait,
        functools.partial(time.sleep, 60),
        functools.partial(threading.Event().wait, 60),
        functools.partial(subprocess.run, ["sleep", "60"]),
        functools.partial(asyncio.run, asyncio.sleep(60)),
    ):
        threading.Thread(target=wait, daemon=True).start()
    while len(waits := list(own_waits.own_waits(files))) < 4:
        own_waits.sleep(0.01)
    return sorted(wait.end for wait in waits)


@pytest.mark.ddp(world_size=1)
def test_waits_that_no_other_rank_ends_are_noted_with_their_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    *timed, process = in_process_of(0, functools.partial(waits_of_threads, tmp_path))
    assert process == math.inf
    assert len(timed) == 3
    assert all(began + 59 < end < time.monotonic() + 60 for end in timed)


def test_a_late_rank_waits_for_one_that_sleeps_and_not_for_a_heartbeat(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    other, heart = os.getpid(), os.getpid() + 1
    (tmp_path / "1" / "pid").write_text(str(other))
    late = delays.Nemesis(order_of(0, tmp_path), Journal(tmp_path / "journal"))
    known: dict[tuple[int, int], int] = {}

    def waits(thread: int, began: int, seconds: float) -> bool:
        mark = tmp_path / "1" / f"{own_waits.PREFIX}{thread}"
        mark.write_text(str(time.monotonic() + seconds))
        os.utime(mark, ns=(began, began))
        counts = late._waits_alone(1, known)
        mark.unlink()
        return counts

    assert [waits(other, began, 1.0) for began in (1, 2)] == [True, True]
    assert [waits(heart, began, 1.0) for began in (1, 1, 2)] == [True, True, False]
    assert not waits(other, 3, 2 * delays.ALONE)
    assert not late._waits_alone(1, known)


def order_of(rank: int, folder: Path, looked: bool = False) -> Order:
    """The order of two ranks, the first of which is late."""
    nothing = Named.of(signal.pause)
    return Order(
        work=Work(does=nothing, entry=nothing, scenario=Scenario(late=0, looked=looked)),
        rank=rank,
        world_size=2,
        directory=str(folder),
        private=str(folder),
        environment=(),
        seed=0,
    )


def test_a_late_rank_looks_before_another_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one waits for it, is not taken to rest meanwhile, and goes first."""
    monkeypatch.setattr(delays, "PATIENCE", 300.0)
    late, other = (
        delays.Nemesis(order_of(rank, tmp_path), Journal(tmp_path / "journal")) for rank in range(2)
    )
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    acted = threading.Event()

    def act() -> None:
        other.at_change(())
        acted.set()

    thread = threading.Thread(target=act)
    thread.start()
    looking, held = tmp_path / "1" / delays.LOOKING, tmp_path / "0" / delays.LATE
    while not looking.exists():
        thread.join(0.001)
    assert not late._rests(1)
    assert not acted.is_set()
    held.touch()
    thread.join()
    assert acted.is_set()
    assert not looking.exists()


def test_a_rank_that_has_looked_is_let_go_to_the_change_that_another_one_waits_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held at something else it goes first; at the same file, or in its folder, the other one."""
    monkeypatch.setattr(delays, "PATIENCE", 300.0)
    late, other = (
        delays.Nemesis(order_of(rank, tmp_path, looked=True), Journal(tmp_path / "journal"))
        for rank in range(2)
    )
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    thread = threading.Thread(target=other.at_change, args=(["/run/old"],))
    thread.start()
    looking, held = tmp_path / "1" / delays.LOOKING, tmp_path / "0" / delays.LATE
    while not late._held_at(1, delays.LOOKING):
        thread.join(0.001)
    late.at_stage()
    late.at_change(["/run/older"])
    assert late._rests(1, ["/run/older"])
    assert not late._rests(1, ["/run/old/a.pt"])
    assert looking.exists()
    held.write_text("/run/old/a.pt")
    thread.join()
    assert not looking.exists()
