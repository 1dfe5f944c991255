"""How a late rank sees that the others are at rest."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path, PosixPath
from typing import Any

import pytest
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Scenario, Work
from ddp_conformance.launched.process import delays


def test_a_rank_that_ends_while_it_is_looked_at_is_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux opens the file of a process that is there, and no longer reads that of one gone."""
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "pid").write_text(str(other.pid))

    class Opened(PosixPath):
        """A path whose process ends once it is opened."""

        def read_text(self, *arguments: Any, **options: Any) -> str:
            if self.name == "stat":
                with self.open() as file:
                    other.kill()
                    other.wait()
                    return file.read()
            return super().read_text(*arguments, **options)

    monkeypatch.setattr(delays, "Path", Opened)
    delays.Nemesis(order_of(0, tmp_path), Journal(tmp_path / "journal")).at_stage()
    assert other.returncode == -signal.SIGKILL


def order_of(rank: int, folder: Path) -> Order:
    """Of two ranks, the first of which is late."""
    nothing = Named.of(signal.pause)
    return Order(
        work=Work(does=nothing, entry=nothing, scenario=Scenario(late=0)),
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
        other.at_change()
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
