"""``--ddp-adopt`` and ``--ddp-everywhere``: defines the options and registers their plugins.

Imported by every pytest run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from pytest_ddp.extending import on_rank
from pytest_ddp.extensions.adopt.options import EVERYWHERE, SETTINGS, Adopt, AdoptOptions
from pytest_ddp.settings.options import OPTIONS, add_options
from pytest_ddp.system import support

if TYPE_CHECKING:
    from pytest_ddp.extensions.adopt.torchrun_environment import TorchrunEnvironment

_PLACE: pytest.StashKey[TorchrunEnvironment] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, SETTINGS)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    size = EVERYWHERE.read(early_config, early_config.known_args_namespace)
    if size is not None and not on_rank(early_config):
        from pytest_ddp.extensions.adopt.torchrun_environment import TorchrunEnvironment  # noqa: PLC0415

        early_config.stash[_PLACE] = place = TorchrunEnvironment(size)
        early_config.add_cleanup(place.leave)


def pytest_ddp_own_environment(config: pytest.Config) -> AbstractContextManager[None] | None:
    return config.stash[_PLACE].left() if _PLACE in config.stash else None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    options = AdoptOptions.of(config)
    if options.adopt or options.everywhere is not None:
        from pytest_ddp.extensions.adopt.adopted_items import AdoptedItems  # noqa: PLC0415

        config.pluginmanager.register(AdoptedItems(options), "ddp-taking")
    if on_rank(config):
        if Adopt.TESTCASE in options.adopt:
            from pytest_ddp.extensions.adopt.ranks.distributedtest_ranks import (  # noqa: PLC0415
                DistributedTests,
            )
            from pytest_ddp.extensions.adopt.ranks.testcases import TestCases  # noqa: PLC0415

            config.pluginmanager.register(TestCases())
            config.pluginmanager.register(DistributedTests())
    elif Adopt.SPAWN in options.adopt and not support.problem():
        from pytest_ddp.extensions.adopt.spawn import Spawns  # noqa: PLC0415

        timeout = config.stash[OPTIONS].timeout
        spawns = Spawns(config, timeout, checks_exits=options.checks_exits)
        config.pluginmanager.register(spawns, "ddp-spawns")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if _PLACE in session.config.stash:
        session.config.stash[_PLACE].leave()
