"""Room for the descriptors of ranks, with limits that are reported and not set."""

from __future__ import annotations

import os
import resource

import pytest

from pytest_ddp.system import tempfiles


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Soft and hard limit; the last pair is what holds."""
    known = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: known[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: known.append(pair))
    return known


def test_few_ranks_leave_the_limit_alone(limits: list[tuple[int, int]]) -> None:
    assert tempfiles.raise_limit(64) == ""
    assert limits == [(1024, 4096)]


def test_many_ranks_raise_it_as_far_as_they_need_it(limits: list[tuple[int, int]]) -> None:
    used = len(os.listdir("/proc/self/fd"))
    assert tempfiles.raise_limit(128) == ""
    soft, hard = limits[-1]
    assert soft == pytest.approx(used + 128 * 10 + 64, abs=8)
    assert hard == 4096


def test_a_hard_limit_in_the_way_is_reported_with_the_number_and_the_fix(
    limits: list[tuple[int, int]],
) -> None:
    said = tempfiles.raise_limit(512)
    assert limits == [(1024, 4096)]
    wanted = int(said.split("ulimit -Hn ")[1].split()[0])
    assert wanted >= 512 * 10 + 64
    assert said.startswith(f"512 more ranks need {wanted} open files in the pytest process")
    assert "hard limit is 4096" in said


def test_no_limit_is_enough(limits: list[tuple[int, int]]) -> None:
    limits.append((1024, resource.RLIM_INFINITY))
    assert tempfiles.raise_limit(4096) == ""
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    before = list(limits)
    assert tempfiles.raise_limit(4096) == ""
    assert limits == before
