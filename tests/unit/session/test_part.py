"""One rank's part in a test: when it has failed, and what is left of a rank that is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddp.launch.rank_process import LOST_CHANNEL, RankProcess
from pytest_ddp.outcome.outcome import Ending, TimedReport
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.session.rank_run import RankRun
from tests.unit.ends import WORLD
from tests.unit.handmade import done, failed, report

SEGFAULT = (
    "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
    '  File "/src/test_it.py", line 7 in test_it\n'
)


@pytest.fixture
def process() -> Iterator[RankProcess]:
    near, far = Channel.pair()
    made = RankProcess(serial=3, world=WORLD, rank=1, channel=near)
    yield made
    made.close()
    far.close()


@pytest.fixture
def part(process: RankProcess) -> RankRun:
    return RankRun(process)


def captured(process: RankProcess, folder: Path, name: str, text: str) -> None:
    """Have the rank print something that no report carries."""
    file = folder / name
    file.write_text(text)
    process.captured[name] = os.open(file, os.O_RDONLY)


@pytest.mark.parametrize(
    ("ending", "certain"),
    [
        (Ending.DONE, False),
        (Ending.EXITED, True),
        (Ending.STOPPED, True),
        (Ending.NOT_BEGUN, True),
    ],
)
def test_whether_an_ending_is_a_failure(part: RankRun, ending: Ending, certain: bool) -> None:
    assert not part.failed
    part.end(ending, 1.0)
    assert part.failed is certain


def test_a_failed_phase_is_a_failure(part: RankRun) -> None:
    part.reports[Phase.SETUP] = TimedReport(report(Phase.SETUP), 0.1)
    assert not part.failed
    part.reports[Phase.CALL] = TimedReport(failed("assert False"), 0.2)
    assert part.failed


def test_pytest_exit_is_a_failure(part: RankRun) -> None:
    part.done = done(exit_reason="enough")
    assert part.failed


def test_the_first_ending_counts(part: RankRun) -> None:
    part.end(Ending.EXITED, 1.0)
    part.end(Ending.STOPPED, 2.0)
    outcome = part.outcome()
    assert (outcome.ending, outcome.at, outcome.rank) == (Ending.EXITED, 1.0, 1)


def test_a_rank_that_is_lost_leaves_its_last_words(
    part: RankRun, process: RankProcess, tmp_path: Path
) -> None:
    captured(process, tmp_path, "stdout", "last words\n")
    captured(process, tmp_path, "stderr", "an error\n")
    process.returncode = 3
    part.end(Ending.EXITED, 1.0)
    outcome = part.outcome()
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, "last words\n", "an error\n")


def test_a_rank_that_was_dying_when_it_was_killed_died_of_its_own_signal(
    part: RankRun, process: RankProcess
) -> None:
    os.write(process.files.faults, SEGFAULT.encode())
    process.returncode = -signal.SIGKILL
    part.end(Ending.STOPPED, 1.0)
    outcome = part.outcome()
    assert (outcome.ending, outcome.returncode) == (Ending.EXITED, -signal.SIGSEGV)
    assert "test_it.py" in outcome.stacks


def test_stacks_of_an_earlier_test_are_not_this_ones(part: RankRun, process: RankProcess) -> None:
    os.write(process.files.faults, SEGFAULT.encode())
    process.files.begin()
    part.end(Ending.STOPPED, 1.0)
    assert (part.outcome().ending, part.outcome().stacks) == (Ending.STOPPED, "")


def test_the_text_names_a_rank_that_closed_its_channel(part: RankRun, process: RankProcess) -> None:
    process.condemned = LOST_CHANNEL
    part.end(Ending.EXITED, 1.0)
    assert "lost its connection to pytest" in part.outcome().problem


def test_a_rank_that_is_done_leaves_no_last_words(part: RankRun, process: RankProcess) -> None:
    os.write(process.files.faults, b"a stack that was asked for")
    part.done = replace(done(), exit_reason=None)
    part.end(Ending.DONE, 1.0)
    assert part.outcome().stacks == ""
    assert part.outcome().done is part.done
