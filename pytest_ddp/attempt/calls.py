"""The collectives that each rank of an ended test asked for, told where their numbers differ."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_ddp.attempt.part import Part
from pytest_ddp.launch.launcher import Launcher
from pytest_ddp.system.own import time
from pytest_ddp.wire.survey import CallRecord, Calls, TellCalls

_LIMIT = 2.0
"""Seconds that idle ranks are given to tell their collectives; it takes milliseconds."""


def ask_for_calls(
    launcher: Launcher, parts: Iterable[Part], test: int
) -> dict[int, tuple[CallRecord, ...]]:
    """Have ranks tell their collectives; by rank, those that could.

    Args:
        launcher: it has these ranks.
        parts: of the ranks, which run nothing else meanwhile.
        test: number of the run.
    """
    asked = {part.process: part for part in parts if not part.process.gone}
    for process in asked:
        process.send(TellCalls(test))
    deadline = time.monotonic() + _LIMIT
    while any(part.calls is None for part in asked.values()):
        if (left := deadline - time.monotonic()) <= 0:
            break
        for process, message in launcher.poll(left):
            if isinstance(message, Calls) and process in asked:
                asked[process].calls = message
    return {
        part.process.rank: part.calls.calls for part in asked.values() if part.calls is not None
    }
