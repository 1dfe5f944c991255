"""What a launcher's variables say."""

from __future__ import annotations

import pytest

from pytest_ddp.machines.engines.choosing import as_told, from_told
from pytest_ddp.machines.engines.engine import EngineError
from pytest_ddp.machines.engines.torchrun import Torchrun
from pytest_ddp.wire.machines import SECRET

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
    assert from_told(as_told(place)) == place
    assert place.listens_at(print) == ("127.0.0.1", 0)


def test_so_do_those_of_another_launcher_with_a_secret() -> None:
    place = Torchrun.from_environment(BARE | {SECRET: "x"})
    assert (place.node, place.nodes, place.has_store) == (1, 2, False)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: pytest was not started by"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "there are 4 processes on this node.*-m pytest"),
        (TORCHRUN | {"RANK": "one"}, "RANK, WORLD_SIZE and MASTER_PORT are numbers"),
        (BARE, "Set PYTEST_DDP_SECRET to the same random text on all nodes"),
    ],
)
def test_what_is_wrong_is_told_with_the_way_out(environment: dict[str, str], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        Torchrun.from_environment(environment)
