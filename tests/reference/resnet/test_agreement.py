"""Agreement in one process; with two ranks it is exercised by the launches of test_program."""

from __future__ import annotations

import pytest
from ddp_reference.resnet.agreement import (
    ConfigError,
    from_rank_zero,
    gather,
    raise_together,
    rank_and_world_size,
    require_equal,
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def fail() -> int:
    raise ConfigError("no place")


def test_one_process_is_rank_zero_of_one() -> None:
    assert rank_and_world_size() == (0, 1)


def test_a_rank_without_its_group_is_not_taken_for_rank_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"WORLD_SIZE is 2, but there is no process group yet"):
        rank_and_world_size()


def test_one_process_agrees_with_itself() -> None:
    assert from_rank_zero(lambda: 7) == 7
    assert gather("a") == ["a"]
    raise_together(None)
    require_equal("the schedule", "0:16")


def test_problems_are_raised() -> None:
    with pytest.raises(ConfigError, match="no place"):
        from_rank_zero(fail)
    with pytest.raises(ConfigError, match="empty folder"):
        raise_together("empty folder")


def test_ranks_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_reference.resnet.agreement.gather", lambda value: [value, value, "b"])
    with pytest.raises(ConfigError, match=r"the seed differs .* 'a' on rank 0, 'b' on rank 2"):
        require_equal("the seed", "a")
