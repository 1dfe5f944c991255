"""How a late rank sees that the others are at rest."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path, PosixPath
from typing import Any

import pytest
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Scenario, Work
from ddp_conformance.launched.process import nemesis


def test_a_rank_that_ends_while_it_is_looked_at_is_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux opens the file of a process that is there, and no longer reads that of one gone."""
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
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

    monkeypatch.setattr(nemesis, "Path", Opened)
    nothing = Named.of(signal.pause)
    order = Order(
        work=Work(does=nothing, entry=nothing, scenario=Scenario(late=0)),
        rank=0,
        world_size=2,
        directory=str(tmp_path),
        private=str(tmp_path),
        environment=(),
        seed=0,
    )
    nemesis.Nemesis(order, Journal(tmp_path / "journal")).at_stage()
    assert other.returncode == -signal.SIGKILL
