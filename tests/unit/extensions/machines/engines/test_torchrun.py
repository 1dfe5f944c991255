"""The engine torchrun, as it is read from a launcher's variables."""

from __future__ import annotations

import socket

import pytest

from pytest_ddp.extensions.machines.engines import torchrun
from pytest_ddp.extensions.machines.engines.engine import SECRET, EngineError, as_role, from_role
from pytest_ddp.extensions.machines.engines.torchrun import Torchrun
from pytest_ddp.system import stdlib

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BARE = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def test_torchrun_s_variables_make_a_place() -> None:
    place = Torchrun.from_environment(TORCHRUN)
    assert (place.node, place.nodes, place.port, place.has_store) == (1, 2, 29500, True)
    assert from_role(as_role(place)) == place
    assert place.listens_at(print) == ("127.0.0.1", 0)


def test_a_name_that_is_not_known_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [socket.EAI_AGAIN, socket.EAI_NONAME]

    def look_up(*_: object) -> list[object]:
        if answers:
            raise socket.gaierror(answers.pop(), "not known")
        return [(None, None, None, None, ("10.0.0.7", 0))]

    monkeypatch.setattr(torchrun, "_BETWEEN_TRIES", 0.001)
    monkeypatch.setattr(stdlib.socket, "getaddrinfo", look_up)
    place = Torchrun.from_environment(BARE | {SECRET: "x", "RANK": "0", "MASTER_ADDR": "pod-0"})
    assert place.listens_at(print) == ("10.0.0.7", 29500)


def test_a_name_that_stays_unknown_is_an_error_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr(torchrun, "_NAME_LIMIT", -1.0)
    monkeypatch.setattr(stdlib.socket, "getaddrinfo", look_up)
    place = Torchrun.from_environment(BARE | {SECRET: "x", "RANK": "0", "MASTER_ADDR": "pod-0"})
    with pytest.raises(EngineError, match=r"MASTER_ADDR=pod-0 leads nowhere from node 0: .*known"):
        place.listens_at(print)


def test_an_address_that_leads_to_node_0_alone_is_a_hint() -> None:
    """Older operators of Kubernetes set localhost there, and a name on the others."""
    place = Torchrun.from_environment(BARE | {SECRET: "x", "RANK": "0", "MASTER_ADDR": "localhost"})
    assert "MASTER_ADDR=localhost leads to this machine alone" in place.hint()


def test_so_do_those_of_another_launcher_with_a_secret() -> None:
    place = Torchrun.from_environment(BARE | {SECRET: "x"})
    assert (place.node, place.nodes, place.has_store) == (1, 2, False)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: pytest was not started by"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "there are 4 processes on this node.*-m pytest"),
        (TORCHRUN | {"RANK": "one"}, "RANK, WORLD_SIZE and MASTER_PORT are numbers"),
        (BARE | {"PET_NPROC_PER_NODE": "2"}, 'Write nprocPerNode: "1" into the PyTorchJob'),
        (BARE, "Set PYTEST_DDP_SECRET to the same random text on all nodes"),
    ],
)
def test_what_is_wrong_is_an_error_with_the_way_out(
    environment: dict[str, str], words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        Torchrun.from_environment(environment)
