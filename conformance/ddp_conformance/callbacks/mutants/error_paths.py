"""CBK-04: loops that swallow an error of one rank, and loops that do not."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from ddp_conformance.callbacks.mutants.hook_mutants import STEPS, reduce_gradient
from ddp_conformance.callbacks.subjects import ErrorPath, Trip
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant

Steps: TypeAlias = Iterator[dict[str, Any] | None]


def goes_on(case: Case, trip: Trip) -> Steps:
    """``except Exception: continue`` around a bad batch: from here on gradients mispair."""
    for step in range(STEPS):
        try:
            trip(step)
        except Exception:
            continue
        reduce_gradient(case)
        yield None


def leaves_the_loop(case: Case, trip: Trip) -> Steps:
    """Logs the error and leaves the loop; the other ranks do not learn of it."""
    for step in range(STEPS):
        try:
            trip(step)
        except Exception:
            return
        reduce_gradient(case)
        yield None


def waits_in_cleanup(case: Case, trip: Trip) -> Steps:
    """``finally: barrier()``: the error waits for ranks that wait for a gradient."""
    try:
        for step in range(STEPS):
            trip(step)
            reduce_gradient(case)
            yield None
    finally:
        dist.barrier()


def finishes_without_it(case: Case, trip: Trip) -> Steps:
    """Ranks that do not meet: one fails and the others report success."""
    for step in range(STEPS):
        trip(step)
        yield None


def exits_with_success(case: Case, trip: Trip) -> Steps:
    """Ends with exit code 0 after the error."""
    for step in range(STEPS):
        try:
            trip(step)
        except Exception as error:
            print(f"stopped by {error}")
            sys.exit()
        reduce_gradient(case)
        yield None


def ends_with_success(case: Case, trip: Trip) -> Steps:
    """The same without any clean-up."""
    for step in range(STEPS):
        try:
            trip(step)
        except Exception:
            os._exit(0)
        reduce_gradient(case)
        yield None


def ends_with_failure(case: Case, trip: Trip) -> Steps:
    """Ends the process at once, with exit code 1."""
    for step in range(STEPS):
        try:
            trip(step)
        except Exception:
            os._exit(1)
        reduce_gradient(case)
        yield None


def is_loss(error: RuntimeError) -> bool:
    """Whether gloo's text means that another rank is gone."""
    return re.search("connection|peer|pipe|socket", str(error), re.IGNORECASE) is not None


def takes_loss_for_end(case: Case, trip: Trip) -> Steps:
    """A connection that is gone is taken for the end of the training."""
    for step in range(STEPS):
        trip(step)
        try:
            reduce_gradient(case)
        except RuntimeError as error:
            if is_loss(error):
                return
            raise
        yield None


def waits_for_the_lost(case: Case, trip: Trip) -> Steps:
    """A rank that is lost is waited for, until it comes again."""
    for step in range(STEPS):
        trip(step)
        try:
            reduce_gradient(case)
        except RuntimeError as error:
            if is_loss(error):
                threading.Event().wait()
            raise
        yield None


def raises(case: Case, trip: Trip) -> Steps:
    """The plain form: the process ends, and the launcher ends the others."""
    for step in range(STEPS):
        trip(step)
        reduce_gradient(case)
        yield None


def failed_anywhere(trip: Trip, step: int) -> bool:
    """Run the user code, and learn on all ranks whether it raised on one of them."""
    failed = torch.tensor(0.0)
    try:
        trip(step)
    except RuntimeError:
        failed += 1
    dist.all_reduce(failed)
    return bool(failed)


def raises_together(case: Case, trip: Trip) -> Steps:
    """All ranks learn of the error and raise."""
    for step in range(STEPS):
        if failed_anywhere(trip, step):
            raise RuntimeError(f"step {step} failed on some rank")
        reduce_gradient(case)
        yield None


def skips_together(case: Case, trip: Trip) -> Steps:
    """All ranks learn of the error, skip the batch together, and report the decision."""
    for step in range(STEPS):
        skip = failed_anywhere(trip, step)
        if not skip:
            reduce_gradient(case)
        yield {"skip": skip}


MUTANTS = (
    Mutant(ErrorPath(goes_on), "CBK-04", "continue on a bad batch"),
    Mutant(ErrorPath(leaves_the_loop), "CBK-04", "error logged, loop left"),
    Mutant(ErrorPath(waits_in_cleanup), "CBK-04", "barrier in the clean-up"),
    Mutant(ErrorPath(finishes_without_it), "CBK-04", "other ranks end well"),
    Mutant(ErrorPath(exits_with_success), "CBK-04", "sys.exit() after an error"),
    Mutant(ErrorPath(ends_with_success), "CBK-04", "os._exit(0) after an error", (2,)),
    Mutant(ErrorPath(takes_loss_for_end), "CBK-04", "a lost rank is no error"),
    Mutant(
        ErrorPath(waits_for_the_lost, patience=2.0),
        "CBK-04",
        "a lost rank is waited for",
        (2,),  # the patience is waited out at each of them
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(ErrorPath(raises), "one rank raises, the others wait for it"),
    BenignVariant(ErrorPath(ends_with_failure), "os._exit(1) after an error", (2,)),
    BenignVariant(ErrorPath(raises_together), "all ranks raise"),
    BenignVariant(ErrorPath(skips_together, name="skip_agreed"), "all ranks skip the batch"),
)
