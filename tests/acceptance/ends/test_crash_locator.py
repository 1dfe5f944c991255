"""A rank that dies is located: rank, phase, file and line, operator, and the kind of its end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.ends.crash_examples import (
    PRELUDE,
    WAYS,
    WAYS_SAID,
    line_of,
)
from tests.acceptance.ends.phase_examples import PHASES, PHASES_SAID
from tests.acceptance.suite import Finished, Suite, flat

TRACEBACK_FOLLOWS = "address_space_is_used_up"
"""An exception, whose place is in its traceback."""
IN_A_SMALL_GROUP = """

@ddp2
def test_eats_memory(ddp):
    if ddp.rank == 1:
        with open(os.path.join(os.environ["SMALL_GROUP"], "cgroup.procs"), "w") as stream:
            stream.write(str(os.getpid()))
        with ddp.phase("load"):  # here eats_memory
            hoard = b"x" * (1 << 30)
    dist.barrier()
"""
SMALL = 128 << 20
"""Bytes, which 1 GiB does not fit into; the kernel counts only what a process asks for in it."""


@pytest.fixture(scope="module")
def ways(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_ways.py", PRELUDE + WAYS)
    return suite.run(timeout=120)


@pytest.fixture(scope="module")
def phases(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_phases.py", PRELUDE + PHASES)
    return suite.run(timeout=120)


@pytest.mark.parametrize("name", WAYS_SAID)
def test_way_to_die_is_reported(ways: Finished, name: str) -> None:
    result, said = ways[f"test_{name}"], WAYS_SAID[name]
    assert result.verdict == "failed"
    assert re.match(said.verdict, result.phase("call").message)
    for words in said.words:
        assert words in flat(result.text + "".join(result.sections.values()))
    assert f"test_ways.py:{line_of(PRELUDE + WAYS, name)}" in result.text


@pytest.mark.parametrize("name", sorted(WAYS_SAID.keys() - {TRACEBACK_FOLLOWS}))
def test_first_line_names_the_place(ways: Finished, name: str) -> None:
    first = flat(ways[f"test_{name}"].text.split("\n\n")[0])
    assert f"test_ways.py:{line_of(PRELUDE + WAYS, name)}" in first


def test_next_one_passes(ways: Finished) -> None:
    assert ways["test_next_one_passes"].verdict == "passed"


@pytest.mark.parametrize("name", PHASES_SAID)
def test_phase_of_a_killed_rank_is_reported(phases: Finished, name: str) -> None:
    result = phases[f"test_{name}"]
    message = next(report.message for report in result.reports if report.outcome == "failed")
    assert message == f"rank 1 died of SIGKILL in {PHASES_SAID[name]}"
    line = line_of(PRELUDE + PHASES, name)
    # On a slow machine a probe may have come by since, and found it there or in what is called.
    place = rf"(begun at test_phases.py:{line}|last seen at test_phases.py:\d+) in "
    assert re.search(place, flat(result.text))


def test_kernel_that_kills_for_memory_is_named(suite: Suite, small_group: Path) -> None:
    suite.write("test_memory.py", PRELUDE + IN_A_SMALL_GROUP)
    result = suite.run(env={"SMALL_GROUP": str(small_group)})["test_eats_memory"]
    assert result.verdict == "failed"
    line = line_of(PRELUDE + IN_A_SMALL_GROUP, "eats_memory")
    assert flat(result.text).startswith(
        f"rank 1 died of SIGKILL in call: load, begun at test_memory.py:{line}"
    )
    assert "the kernel's out-of-memory killer killed " in flat(result.text)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group that the kernel gives little memory."""
    try:
        group, limit = _new_group()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(SMALL))
        except OSError as error:
            pytest.skip(f"a control group's memory cannot be bounded here: {error}")
        yield group
    finally:
        group.rmdir()


def _new_group() -> tuple[Path, str]:
    """A new control group, version 1 or 2, and the name of the file with its limit."""
    name = f"pytest-ddp-{os.getpid()}"
    old = Path("/sys/fs/cgroup/memory")
    folder, limit = (old, "memory.limit_in_bytes") if old.is_dir() else (old.parent, "memory.max")
    group = folder / name
    group.mkdir()
    return group, limit
