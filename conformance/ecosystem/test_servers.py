"""A server of forks is apart from that of multiprocessing, and serves more than one process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from conformance.ecosystem.servers import Server

ANSWER = "wave"
"""A module that is small, and that nothing else imports."""


def tell(path: Path) -> None:
    path.write_text(f"{os.getppid()} {ANSWER in sys.modules}")


def answers(path: Path, server: Server) -> list[str]:
    process = server.process(tell, (path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return path.read_text().split()


@pytest.mark.ddp(world_size=1)
def test_each_server_imports_its_own(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    ours, other = (
        Server("conformance.ecosystem.test_servers", ANSWER),
        Server("conformance.ecosystem.test_servers"),
    )
    first, again = answers(path, ours), answers(path, ours)
    assert first == again
    assert first[1] == "True"
    parent, imported = answers(path, other)
    assert imported == "False"
    assert parent != first[0]
    process = multiprocessing.get_context("forkserver").Process(target=tell, args=(path,))
    process.start()
    process.join()
    assert path.read_text().split()[0] not in (parent, first[0])
