"""CBK-02 and CBK-04: loops that end the process group, as programs do, right ones among them."""

from __future__ import annotations

import torch.distributed as dist

from ddp_conformance.callbacks.mutants.hook_mutants import (
    STEPS,
    Steps,
    decides,
    local_loss,
    mean_loss,
    reduce_gradient,
)
from ddp_conformance.callbacks.subjects import ErrorPath, Trip
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant

LATE = 20
"""A step that only a loop over many samples comes to."""


def raises_and_closes(case: Case, trip: Trip) -> Steps:
    """The usual ``finally`` of a program: after an error, too, it ends its group."""
    try:
        for step in range(STEPS):
            trip(step)
            reduce_gradient(case)
            yield None
    finally:
        dist.destroy_process_group()


def closes_and_leaves(case: Case, trip: Trip) -> Steps:
    """Rank 0 raises its errors, any other rank ends its group and leaves the loop."""
    try:
        for step in range(STEPS):
            trip(step)
            reduce_gradient(case)
            yield None
    except Exception:
        dist.destroy_process_group()
        if case.rank == 0:
            raise


def stops_together_and_closes(case: Case) -> Steps:
    """A decision by the mean of all ranks' losses in each step; the group is ended at the end."""
    for step in range(0, case.size, case.world_size):
        yield {"stop": mean_loss(case, step) > LATE}
    dist.destroy_process_group()


def stops_alone_and_closes(case: Case) -> Steps:
    """The same, from some step on by the rank's own loss."""
    for step in range(0, case.size, case.world_size):
        loss = mean_loss(case, step)
        yield {"stop": (loss if step < LATE else float(local_loss(case, step))) > LATE}
    dist.destroy_process_group()


MUTANTS = (
    Mutant(ErrorPath(closes_and_leaves), "CBK-04", "the group ended in place of an error", (2,)),
    Mutant(decides(stops_alone_and_closes), "CBK-02", "a late decision by the local loss", (2,)),
)

BENIGN_VARIANTS = (
    BenignVariant(ErrorPath(raises_and_closes), "an error after which the group is ended", (2,)),
    BenignVariant(decides(stops_together_and_closes), "a loop that ends its group", (2, 3)),
)
