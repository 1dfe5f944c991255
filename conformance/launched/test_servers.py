"""A server of forks is apart from that of multiprocessing, and serves more than one process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from ddp_conformance.launched.start.servers import Server

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


def tell_hash(path: Path) -> None:
    path.write_text(f"{hash(ANSWER)} {os.environ.get('PYTHONHASHSEED')}")


@pytest.mark.ddp(world_size=1)
def test_a_server_gives_its_forks_its_hash_seed(tmp_path: Path) -> None:
    found = []
    for seed in ("7", "7", "8"):
        server = Server("conformance.launched.test_servers", PYTHONHASHSEED=seed)
        process = server.process(tell_hash, (tmp_path / "answer",))
        process.start()
        process.join()
        found.append((tmp_path / "answer").read_text())
    first, again, other = found
    assert first == again
    assert first.split()[0] != other.split()[0]


@pytest.mark.ddp(world_size=1)
def test_each_server_imports_its_own(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    ours, other = (
        Server("conformance.launched.test_servers", ANSWER),
        Server("conformance.launched.test_servers"),
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
