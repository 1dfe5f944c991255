"""A rank starts as a rank of torchrun does: what modules see while they are imported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.startup.environment_examples import (
    PLACES,
    read_states,
    under_torchrun,
    write_states,
)
from tests.acceptance.suite import Suite

Relations = dict[str, dict[str, str]]
"""How the two ranks' states relate, by place and state."""

DRAWN = (
    *("uuid", "time", "random", "numpy", "pid", "port"),
    *("torch seed", "torch draw", "set order"),
)
HIDDEN_BY_FORK: Relations = {
    **{place: {"set order": "the same"} for place in PLACES},
    "calm_party": dict.fromkeys(DRAWN, "the same"),
}
"""All in which forked ranks differ from torchrun's: they share a hash seed, and what an
installed package drew that asks for no rank, starts no thread and makes no folder."""


@pytest.fixture(scope="module")
def relations(new_suite: Callable[[], Suite]) -> Callable[[str], Relations]:
    """Relations under "torchrun", or under our ranks of a start method; each run once."""
    suite = new_suite()
    env = write_states(suite) | {"FOLDERS": str(suite.directory / "folders")}
    (suite.directory / "folders").mkdir()
    known: dict[str, Relations] = {}

    def run(way: str) -> Relations:
        found = suite.directory / way
        found.mkdir()
        given: dict[str, str | None] = {**env, "FOUND": str(found), "PYTHONHASHSEED": None}
        if way == "torchrun":
            under_torchrun(suite, "-p", "own_plugin", env=env | {"FOUND": str(found)})
        else:
            options = ("-p", "own_plugin", f"--ddp-start-method={way}")
            finished = suite.run(*options, env=given, extra=())
            finished.assert_outcomes(passed=2)
            assert "ranks are spawned" not in finished.output
        return read_states(found)

    def under(way: str) -> Relations:
        if way not in known:
            known[way] = run(way)
        return known[way]

    return under


@pytest.mark.parametrize("place", PLACES)
def test_forked_ranks_import_as_under_torchrun(
    relations: Callable[[str], Relations], place: str
) -> None:
    assert relations("fork")[place] == relations("torchrun")[place] | HIDDEN_BY_FORK[place]


@pytest.mark.parametrize("place", PLACES)
def test_spawned_ranks_import_as_under_torchrun(
    relations: Callable[[str], Relations], place: str
) -> None:
    assert relations("spawn")[place] == relations("torchrun")[place]


def test_the_table_distinguishes_ranks(relations: Callable[[str], Relations]) -> None:
    """What torchrun shows, lest all be equal because nothing was compared."""
    assert relations("torchrun")["own_package"] == {
        **dict.fromkeys((*DRAWN, "folder"), "its own"),
        **dict.fromkeys(("RANK", "LOCAL_RANK"), "its own rank"),
        "WORLD_SIZE": "2 for all",
        "initialized": "False for all",
        "thread": "True for all",
    }
