"""What the pytest session wants of one attempt, and what each rank is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from pytest_ddp.asked.plan import LaunchPlan
from pytest_ddp.attempt.live import LiveLine
from pytest_ddp.attempt.terminal import Terminal
from pytest_ddp.launch.rankprocess import RankProcess
from pytest_ddp.system import memfile
from pytest_ddp.system.own import os
from pytest_ddp.wire.hosting import World
from pytest_ddp.wire.protocol import RunTest


@dataclass(frozen=True, slots=True)
class Order:
    """A planned test with what only the pytest session knows about it."""

    plan: LaunchPlan
    item: pytest.Item
    next_item: pytest.Item | None
    """The next test of the pool."""
    next_is_known: bool
    """Whether a next test of None means that there is none."""
    ends_family: bool
    """Whether the test is of a family, and the next one may be of another."""
    tmp_path: str
    live: LiveLine
    terminal: Terminal
    log_level: int | None
    """From which level on live logs or a log file want records; None if there is neither."""

    def for_ranks(
        self,
        test: int,
        store: str | None,
        new: bool,
        together: bool,
        by_file: bool,
        keys: int,
    ) -> RunTest:
        """What all ranks are told that need no other torchrun variables, and serve nothing.

        Args:
            test: number of the run.
            store: name of the store of the process group.
            new: whether the ranks do not meet by it yet.
            together: whether no rank begins before all are ready.
            by_file: whether the file of a new store travels along.
            keys: number of the run since which the store keeps its keys.
        """
        following = self.next_item
        begins = self.item.config.hook.pytest_ddp_attempt_begins(item=self.item)
        return RunTest(
            test=test,
            nodeid=self.plan.nodeid,
            file=str(self.item.path),
            next_nodeid=None if following is None else following.nodeid,
            next_file=None if following is None else str(following.path),
            next_is_known=self.next_is_known,
            store=store,
            new_store=new,
            by_file=by_file,
            keys=keys,
            together=together,
            environment={},
            env=self.plan.env,
            driven=self.plan.driven,
            of_family=bool(self.plan.family),
            ends_family=self.ends_family,
            seeds=self.plan.seeds,
            tmp_path=self.tmp_path,
            own_tmp_path=self.plan.own_tmp_path,
            serve_store=False,
            log_level=self.log_level,
            from_plugins={name: sent for each in begins for name, sent in each.items()},
        )


_START_LIMIT = 300.0
"""Seconds for ranks to come up, and to import the file of a test."""


def start_limit(timeout: float) -> float:
    """Seconds until something is broken that comes before a test with this time of its own."""
    return max(timeout, _START_LIMIT)


def may_import(processes: Iterable[RankProcess], nodeid: str) -> bool:
    """Whether some rank is new or has run tests of another file last.

    To import this one takes no time of the test, and what tests have left may keep pytest from
    it, in one rank and not in the others.
    """
    return {process.test.partition("::")[0] for process in processes} != {nodeid.partition("::")[0]}


def is_new(store: str | None, processes: Iterable[RankProcess]) -> bool:
    """Whether there is a store, and these ranks do not meet by it yet."""
    return store is not None and any(process.store != store for process in processes)


@contextmanager
def file_of(store: str | None, world: World) -> Iterator[tuple[int, ...]]:
    """The file of a new store, to be handed to its ranks; none where it reaches only some."""
    if store is None or world.nodes:
        yield ()
        return
    file = memfile.create(f"pytest-ddp {store}")
    yield (file,)
    os.close(file)
