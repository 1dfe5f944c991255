"""The pytest session's request for one attempt, and the message to ranks that follows."""

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
    """A planned test with the facts that only the pytest session has."""

    plan: LaunchPlan
    item: pytest.Item
    next_item: pytest.Item | None
    """The next test of the pool."""
    next_is_known: bool
    """Whether ``next_item`` is None because no test follows."""
    ends_family: bool
    """Whether the test is of a family, and the next one may not be of it."""
    tmp_path: str
    live: LiveLine
    terminal: Terminal
    log_level: int | None
    """Least level of records for live logs or a log file; None if there is neither."""

    def for_ranks(
        self,
        test: int,
        *,
        store: str | None,
        new: bool,
        together: bool,
        by_file: bool,
        keys: int,
    ) -> RunTest:
        """The message for a rank with unchanged torchrun variables that serves no store.

        Args:
            test: number of the run.
            store: name of the store of the process group.
            new: whether the ranks have no group by this store yet.
            together: whether no rank begins before all are ready.
            by_file: whether the file of a new store is sent with the message.
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
"""Seconds for ranks to start, and to import the file of a test."""


def start_limit(timeout: float) -> float:
    """Seconds that the start before a test with this timeout may take."""
    return max(timeout, _START_LIMIT)


def may_import(processes: Iterable[RankProcess], nodeid: str) -> bool:
    """Whether some rank is new, or ran a test of another file last.

    The import of the test file does not count as time of the test, and it may fail on one rank
    alone, by what earlier tests left there.
    """
    return {process.test.partition("::")[0] for process in processes} != {nodeid.partition("::")[0]}


def is_new(store: str | None, processes: Iterable[RankProcess]) -> bool:
    """Whether there is a store, and not all of these ranks have a group by it yet."""
    return store is not None and any(process.store != store for process in processes)


@contextmanager
def file_of(store: str | None, world: World) -> Iterator[tuple[int, ...]]:
    """The file of a new store, for its ranks; none on several machines, as it stays on one."""
    if store is None or world.nodes:
        yield ()
        return
    file = memfile.create(f"pytest-ddp {store}")
    yield (file,)
    os.close(file)
