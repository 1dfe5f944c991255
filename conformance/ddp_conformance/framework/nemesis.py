"""Varies what must not matter: when each rank comes, and what its random generators give.

A check pauses here at each stage; some ranks then wait some milliseconds, others do not.
All follows from one seed, so that what was seen can be seen again.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy  # noqa: F401 - whose generator is seeded where it is imported

from ddp_conformance.framework.seed import OPTION as OPTION
from ddp_conformance.framework.seed import seed as seed
from ddp_conformance.framework.seed import use_seed as use_seed
from pytest_ddp.rank.cleanup.seeding import seed_everything

LONGEST = 0.004
"""Seconds of a pause: longer than an exchange between ranks, short beside a check."""

ONE_OF = 8
"""Stages for each one that is paused at. At every stage, all ranks would be late alike."""

_AT_WORK: ContextVar[random.Random | None] = ContextVar("nemesis", default=None)


def scatter(what: str, rank: int) -> int:
    """Give the three global generators states of this rank's own; returns their seed.

    ``what`` tells one occasion from another, so that no two find the same states.
    """
    digest = hashlib.sha256(f"{seed()} {what} {rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    seed_everything(number)
    return number


@contextmanager
def at_work(check: str, rank: int) -> Iterator[None]:
    """Random states of this rank's own, and pauses, for the check in the block."""
    token = _AT_WORK.set(random.Random(scatter(check, rank)))
    try:
        yield
    finally:
        _AT_WORK.reset(token)


def pause() -> None:
    """Wait, or do not: called at each stage of a check, on every rank."""
    choice = _AT_WORK.get()
    if choice is not None and choice.randrange(ONE_OF) == 0:
        threading.Event().wait(choice.uniform(0, LONGEST))
