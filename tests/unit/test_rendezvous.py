"""What ranks find each other by: a private directory, a loopback socket, torchrun's variables."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from pytest_ddp.rendezvous import listen, private_directory, rank_environment


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_private_directory_is_closed_under_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = os.umask(umask)
    try:
        directory = private_directory()
    finally:
        os.umask(old)
    assert directory.parent == tmp_path
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_private_directories_are_never_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len({private_directory() for _ in range(5)}) == 5


def test_the_socket_listens_on_loopback_alone() -> None:
    with listen(backlog=2) as server:
        address, port = server.getsockname()
        assert address == "127.0.0.1"
        assert port > 0
        with socket.create_connection((address, port), timeout=10), server.accept()[0]:
            pass


def test_sockets_that_are_open_together_have_ports_of_their_own() -> None:
    with listen(1) as first, listen(1) as second:
        assert first.getsockname() != second.getsockname()


def test_ranks_are_told_where_they_are_as_by_torchrun() -> None:
    environments = [rank_environment(rank, 3, 4711, "abc") for rank in range(3)]
    for name in ("RANK", "LOCAL_RANK", "ROLE_RANK"):
        assert [environment[name] for environment in environments] == ["0", "1", "2"]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"):
        assert {environment[name] for environment in environments} == {"3"}
    for environment in environments:
        assert (environment["GROUP_RANK"], environment["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == "4711"
        assert environment["TORCHELASTIC_RUN_ID"] == "abc"


def test_no_rank_is_to_listen_by_itself() -> None:
    assert rank_environment(0, 2, 1, "x")["TORCHELASTIC_USE_AGENT_STORE"] == "True"
