"""Ranks on several machines: ``--ddp-machines`` and its companions.

Imported by every pytest run: what only sessions on several machines need is imported by them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import pytest

from pytest_ddp.extensions.machines.engines import options
from pytest_ddp.settings.options import add_options

if TYPE_CHECKING:
    from pytest_ddp.launch.launcher import Launcher
    from pytest_ddp.launch.streams import PieceDisplay
    from pytest_ddp.protocol.host_messages import Session
    from pytest_ddp.settings.layout import Layout


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, options.SETTINGS)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Be an agent, with its exit code, on a node that is not pytest's."""
    if options.read(config).machines is None:
        return None
    from pytest_ddp.extensions.machines import begin  # noqa: PLC0415

    with contextlib.ExitStack() as own:
        for context in config.hook.pytest_ddp_own_environment(config=config):
            own.enter_context(context)
        return begin.begin(config)


def pytest_configure(config: pytest.Config) -> None:
    options.read(config)  # a wrong value is an error, also in sessions on one machine


def pytest_ddp_make_layout(config: pytest.Config) -> Layout | None:
    read = options.read(config)
    if read.machines is None:
        return None
    from pytest_ddp.extensions.machines import remote_launcher  # noqa: PLC0415
    from pytest_ddp.extensions.machines.rank_layout import SeveralMachines  # noqa: PLC0415

    return SeveralMachines(functools.partial(remote_launcher.gpus, config), read.ranks_per_machine)


def pytest_ddp_make_launcher(
    config: pytest.Config, session: Session, display: PieceDisplay
) -> Launcher | None:
    if options.read(config).machines is None:
        return None
    from pytest_ddp.extensions.machines import remote_launcher  # noqa: PLC0415

    return remote_launcher.start(config, session, display)


def pytest_ddp_keep_launcher(config: pytest.Config) -> bool | None:
    """Agents wait for the end of the session, whatever is collected."""
    if options.read(config).machines is None:
        return None
    from pytest_ddp.extensions.machines import begin  # noqa: PLC0415

    return not begin.is_question(config.option)
