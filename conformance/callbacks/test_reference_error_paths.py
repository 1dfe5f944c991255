"""The reference's loops fail together.

Launched ranks import this file; it imports no Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddp_conformance import Case, ErrorPath, Subject, parametrize_with_checks
from ddp_reference.resnet.agreement import ConfigError, raise_together

if TYPE_CHECKING:
    from ddp_conformance.callbacks.subjects import Trip
    from ddp_conformance.frontend.pytest_frontend import BoundCheck


def resnet_agreement(case: Case, trip: Trip) -> Iterator[None]:
    """What the data module does with a problem of one rank."""
    for step in range(3):
        raise_together(problem_of(trip, step))
        yield None


def problem_of(trip: Trip, step: int) -> str | None:
    """The error of this rank, as the data module keeps it."""
    try:
        trip(step)
    except (ConfigError, RuntimeError) as error:
        return str(error)
    return None


@parametrize_with_checks([ErrorPath(resnet_agreement)], world_size=(1, 2, 3), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
