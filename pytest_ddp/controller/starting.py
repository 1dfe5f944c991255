"""What a session starts its ranks with: a launcher, and devices for them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_ddp.asked.options import Options
from pytest_ddp.asked.plan import LaunchPlan
from pytest_ddp.asked.rules import option_error
from pytest_ddp.asked.spread import MachineGpus
from pytest_ddp.attempt.display import Display
from pytest_ddp.launch import gpus
from pytest_ddp.launch.launcher import HostDiedError, Launcher, NoRankError
from pytest_ddp.wire.hosting import Session, World

if TYPE_CHECKING:
    from pytest_ddp.machines.fleet import Fleet

_FLEET: pytest.StashKey[Fleet] = pytest.StashKey()


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
    from pytest_ddp.machines import begin, fleet  # noqa: PLC0415

    engine = config.stash[begin.ENGINE]
    launcher = fleet.Fleet(session, display, quiet=quiet, engine=engine)
    try:
        launcher.wait_for_agents(functools.partial(_say, config))
    except (NoRankError, HostDiedError) as error:
        launcher.close()
        raise option_error(f"--ddp-machines={options.machines.engine}: {error}") from None
    except BaseException:
        launcher.close()
        raise
    config.stash[_FLEET] = launcher
    return launcher


def _say(config: pytest.Config, what: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(f"ddp: {what}")


def what_there_is(
    config: pytest.Config, options: Options
) -> tuple[int, str, Sequence[MachineGpus]]:
    """Number of GPUs here, their kind, and the machines with agents, once all have told.

    Raises:
        NoRankError: one of them does not come, or is not as this one.
        HostDiedError: the hub did not live to tell.
    """
    if options.machines is None:
        return gpus.count_gpus(), gpus.device_kind(), ()
    return 0, "cuda", config.stash[_FLEET].gpus()


@contextlib.contextmanager
def with_devices(config: pytest.Config, plan: LaunchPlan) -> Iterator[LaunchPlan]:
    """Lease the GPUs of a plan, if it has any, on the machines whose they are."""
    if plan.devices is None:
        yield plan
        return
    terms = plan.ranks_per_gpu, plan.timeout, plan.nodeid
    with _lease(config, plan.world, *terms) as leased:
        yield dataclasses.replace(plan, devices=leased)


def _lease(
    config: pytest.Config, world: World, ranks_per_gpu: int, limit: float, holder: str
) -> contextlib.AbstractContextManager[tuple[int, ...]]:
    if world.nodes:
        return config.stash[_FLEET].lease(world, ranks_per_gpu, limit, holder)
    return gpus.lease(world.world_size, limit=limit, holder=holder, ranks_per_gpu=ranks_per_gpu)
