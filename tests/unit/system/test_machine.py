"""What of the machine is reported before the first ddp test, and what is not."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import connection

import pytest

from pytest_ddp.system import machine, tempfiles
from pytest_ddp.system.tempfiles import SessionFolder


def test_this_machine_runs_ddp_tests() -> None:
    assert machine.loopback_problem() is None


def test_an_interface_that_is_not_there_is_reported_with_the_way_out() -> None:
    problem = str(machine.loopback_problem("nolo"))
    assert "the network interface nolo is down or missing" in problem
    assert problem.endswith("ip link set nolo up")


@pytest.mark.parametrize("excess", [0, 1])
def test_the_longest_directory_is_the_longest_with_room_for_a_socket(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    wanted = tempfiles.LONGEST_TEMPDIR + excess
    path = os.path.join(tmp_path, "x" * (wanted - len(os.fspath(tmp_path)) - 1))
    assert len(path) == wanted
    os.mkdir(path)
    monkeypatch.setattr(tempfile, "tempdir", path)
    held = SessionFolder()
    # As multiprocessing names them, in the folder that ranks give it.
    socket = tempfile.mktemp(prefix="listener-", dir=held.path)
    try:
        if not excess:
            connection.Listener(socket, "AF_UNIX").close()
            assert machine.tempdir_problem() is None
        else:
            with pytest.raises(OSError, match="AF_UNIX path too long"):
                connection.Listener(socket, "AF_UNIX")
            assert f"{wanted} characters" in str(machine.tempdir_problem())
            assert path in str(machine.tempdir_problem())
    finally:
        held.close()


def test_characters_count_as_the_kernel_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "ü" * (tempfiles.LONGEST_TEMPDIR // 2 + 1))
    assert machine.tempdir_problem()
