"""What a session starts its ranks with: a launcher, and devices for them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from pytest_ddp.asked.options import Options
from pytest_ddp.asked.plan import LaunchPlan
from pytest_ddp.asked.rules import option_error
from pytest_ddp.attempt.display import Display
from pytest_ddp.launch import gpus
from pytest_ddp.launch.launcher import HostDiedError, Launcher, NoRankError
from pytest_ddp.wire.hosting import Session

_MACHINES = pytest.StashKey[int]()


def new_launcher(
    config: pytest.Config, options: Options, session: Session, display: Display
) -> Launcher:
    """One for this machine, or one that has others by their agents.

    Raises:
        pytest.UsageError: agents that were started on other machines cannot come.
    """
    quiet = not session.verbose_output
    if options.machines is None:
        return Launcher(session, display, quiet=quiet)
    from pytest_ddp.machines import begin, fleet, shipping  # noqa: PLC0415

    ships = None
    if options.ship:
        ships = shipping.asked(config.rootpath, config.inipath, options.ship_limit)
    engine = config.stash[begin.ENGINE]
    launcher = fleet.Fleet(session, display, quiet=quiet, engine=engine, ships=ships)
    try:
        launcher.wait_for_agents()
    except (NoRankError, HostDiedError) as error:
        launcher.close()
        raise option_error(f"--ddp-machines={options.machines.engine}: {error}") from None
    except BaseException:
        launcher.close()
        raise
    config.stash[_MACHINES] = launcher.machines
    return launcher


def what_there_is(config: pytest.Config, options: Options) -> tuple[int, str, int]:
    """Number of GPUs, their kind, and number of machines with agents."""
    if options.machines is None:
        return gpus.count_gpus(), gpus.device_kind(), 0
    # Those of other machines are unknown here.
    return 0, gpus.device_kind(), config.stash[_MACHINES]


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
