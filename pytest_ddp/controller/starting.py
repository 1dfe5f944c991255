"""What a session starts its ranks with: a launcher, and devices for them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from pytest_ddp.asked.options import Options
from pytest_ddp.asked.plan import LaunchPlan
from pytest_ddp.attempt.display import Display
from pytest_ddp.launch import gpus
from pytest_ddp.launch.launcher import Launcher
from pytest_ddp.wire.hosting import Session


def new_launcher(
    config: pytest.Config, options: Options, session: Session, display: Display
) -> Launcher:
    """One for this machine, or one that has others by their agents."""
    quiet = not session.verbose_output
    if options.machines is None:
        return Launcher(session, display, quiet=quiet)
    from pytest_ddp.machines import engine, fleet  # noqa: PLC0415

    return fleet.Fleet(session, display, quiet=quiet, place=config.stash[engine.PLACE])


def what_there_is(config: pytest.Config, options: Options) -> tuple[int, str, int]:
    """Number of GPUs, their kind, and number of machines with agents."""
    if options.machines is None:
        return gpus.count_gpus(), gpus.device_kind(), 0
    from pytest_ddp.machines import engine  # noqa: PLC0415

    # Those of other machines are unknown here.
    return 0, gpus.device_kind(), config.stash[engine.PLACE].nodes


@contextlib.contextmanager
def with_devices(plan: LaunchPlan) -> Iterator[LaunchPlan]:
    """Lease the GPUs of a plan, if it has any."""
    if plan.devices is None:
        yield plan
        return
    with gpus.lease(
        len(plan.devices),
        limit=plan.timeout,
        holder=plan.nodeid,
        ranks_per_gpu=plan.ranks_per_gpu,
    ) as leased:
        yield dataclasses.replace(plan, devices=leased)
