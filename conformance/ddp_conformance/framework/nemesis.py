"""Varies what must not matter: the ranks' timing, and the states of their random generators.

Each check calls :func:`pause` at each stage; some ranks then wait some milliseconds, others do
not. All of it follows from one seed, so a result can be reproduced.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy  # noqa: F401 - only an imported NumPy is seeded

from ddp_conformance.framework.seed import OPTION as OPTION
from ddp_conformance.framework.seed import seed as seed
from ddp_conformance.framework.seed import use_seed as use_seed
from pytest_ddp.rank.cleanup.seeding import seed_everything

LONGEST = 0.004
"""Seconds of a pause: longer than an exchange between ranks, short beside a check."""

ONE_OF = 8
"""A rank pauses at one stage in this many. With a pause at each, all would be equally late."""

_AT_WORK: ContextVar[random.Random | None] = ContextVar("nemesis", default=None)


def scatter(what: str, rank: int) -> int:
    """Seed the three global generators differently on each rank; returns the seed.

    ``what`` names the use of the states; each use has states of its own.
    """
    digest = hashlib.sha256(f"{seed()} {what} {rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    seed_everything(number)
    return number


@contextmanager
def at_work(check: str, rank: int) -> Iterator[None]:
    """Seed this rank's generators, and let it pause, for the check in the block."""
    token = _AT_WORK.set(random.Random(scatter(check, rank)))
    try:
        yield
    finally:
        _AT_WORK.reset(token)


def pause() -> None:
    """Wait at some of the stages of a check; every rank calls it at each stage."""
    choice = _AT_WORK.get()
    if choice is not None and choice.randrange(ONE_OF) == 0:
        threading.Event().wait(choice.uniform(0, LONGEST))
