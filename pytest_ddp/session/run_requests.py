"""Plans each ddp test of a session, and makes the order for an attempt at it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from pytest_ddp.launch import gpus
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.protocol.host_messages import World
from pytest_ddp.protocol.messages import RunTest
from pytest_ddp.session.display import LiveLine, listening_level
from pytest_ddp.session.planned_runs import PlannedRun
from pytest_ddp.session.terminal import Terminal
from pytest_ddp.settings.layout import Layout, OneMachine
from pytest_ddp.settings.marked_items import MARK, read_marks
from pytest_ddp.settings.options import Options
from pytest_ddp.settings.plan import LaunchPlan, make_plan, make_seeds
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os

# ------------------------------------------------------------------
# The pytest session's request for one attempt, and the message to ranks that follows.


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A planned test with the facts that only the pytest session has."""

    plan: LaunchPlan
    item: pytest.Item
    next_item: pytest.Item | None
    """The next test of the pool."""
    next_is_known: bool
    """Whether ``next_item`` is None because no test follows."""
    ends_module_state: bool
    """Whether the test has a ``module_state``, and the next one may have another or none."""
    tmp_path: str
    live: LiveLine
    terminal: Terminal
    log_level: int | None
    """Least level of records for live logs or a log file; None if there is neither."""
    planned: PlannedRun | None = None
    """The run, if a plugin has planned several."""

    @property
    def title(self) -> str:
        """The name of the test, with that of a planned run."""
        name = self.item.name
        return name if self.planned is None else f"{name} ({self.planned.name})"

    def for_ranks(
        self,
        test: int,
        *,
        store: str | None,
        new: bool,
        waits_for_go: bool,
        by_file: bool,
        keys: int,
    ) -> RunTest:
        """The message for a rank with unchanged torchrun variables that serves no store.

        Args:
            test: number of the run.
            store: name of the store of the process group.
            new: whether the ranks have no group by this store yet.
            waits_for_go: whether no rank begins before all are ready.
            by_file: whether the file of a new store is sent with the message.
            keys: number of the run since which the store keeps its keys.
        """
        following = self.next_item
        begins = self.item.config.hook.pytest_ddp_attempt_begins(item=self.item)
        sent = {name: each for begin in begins for name, each in begin.items()}
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
            waits_for_go=waits_for_go,
            environment={},
            env=self.plan.env,
            driven=self.plan.driven,
            shares_module_state=bool(self.plan.module_state),
            ends_module_state=self.ends_module_state,
            seeds=self.plan.seeds,
            tmp_path=self.tmp_path,
            own_tmp_path=self.plan.own_tmp_path,
            serve_store=False,
            log_level=self.log_level,
            is_planned=self.planned is not None,
            from_plugins=sent if self.planned is None else {**sent, **self.planned.sent},
        )


_START_LIMIT = 300.0
"""Seconds for ranks to start, and to import the file of a test."""


def start_limit(timeout: float) -> float:
    """Seconds that the start before a test with this timeout may take."""
    return max(timeout, _START_LIMIT)


def may_import(processes: Iterable[RankProcess], nodeid: str) -> bool:
    """Whether a rank may have to import a test's file: it is new, or ran another file's test last.

    The import of the test file does not count as time of the test, and it may fail on one rank
    alone, by what earlier tests left there.
    """
    return {process.test.partition("::")[0] for process in processes} != {nodeid.partition("::")[0]}


def is_new(store: str | None, processes: Iterable[RankProcess]) -> bool:
    """Whether there is a store by which one of these ranks has no process group yet."""
    return store is not None and any(process.store != store for process in processes)


@contextmanager
def file_of(store: str | None, world: World) -> Iterator[tuple[int, ...]]:
    """The file of a new store, for its ranks; none on several machines, as it stays on one."""
    if store is None or world.nodes:
        yield ()
        return
    file = tempfiles.create(f"pytest-ddp {store}")
    yield (file,)
    os.close(file)


_TIMEOUT = pytest.StashKey[float]()
"""The timeout of pytest-timeout for a test, in seconds."""
_DRIVEN = pytest.StashKey[bool]()
"""Whether a plugin of the pytest process decides how often the test runs."""
_DOUBTFUL = pytest.StashKey[bool]()
"""Whether the last attempt failed in a way after which the next one needs fresh ranks."""


class RunRequests:
    """The plans and orders of a session's ddp tests."""

    def __init__(
        self, config: pytest.Config, options: Options, live: LiveLine, terminal: Terminal
    ) -> None:
        self._config = config
        self._options = options
        self._live, self._terminal = live, terminal
        self.items: list[pytest.Item] = []
        """All ddp tests, in the order in which they run."""
        self._positions: dict[pytest.Item, int] = {}
        self._plans: dict[pytest.Item, LaunchPlan] = {}

    def collected(self, items: list[pytest.Item]) -> None:
        """Collection is over: take the ddp tests from the items."""
        self.items = [item for item in items if MARK in item.stash]
        self._positions = {item: position for position, item in enumerate(self.items)}

    def set_timeout(self, item: pytest.Item, seconds: float) -> None:
        """Apply pytest-timeout's limit to a test, if it is shorter than our own."""
        item.stash[_TIMEOUT] = seconds

    def set_driven(self, item: pytest.Item) -> None:
        """Keep plugins in ranks from running a test again: a plugin in this process does it."""
        item.stash[_DRIVEN] = True

    def set_doubtful(self, item: pytest.Item, doubtful: bool) -> None:
        """Set whether fresh ranks are needed, if the test runs again."""
        item.stash[_DOUBTFUL] = doubtful

    def is_ddp_test(self, item: pytest.Item) -> bool:
        """Whether an item, also a deselected one, runs on ranks."""
        if MARK not in item.stash:
            read_marks([item], self._options)
        return MARK in item.stash

    def plan(self, item: pytest.Item, planned: PlannedRun | None = None) -> LaunchPlan:
        """The plan for the next attempt at a test, or for a planned run.

        Raises:
            NoRankError: the layout waits for other machines, and one does not connect.
            HostDiedError: the process that holds the connections to them has died.
        """
        driven = item.stash.get(_DRIVEN, False)
        plan = self._planned(item) if planned is None else self._planned_run(item, planned)
        if driven or planned is not None:
            isolate = plan.isolate or item.stash.get(_DOUBTFUL, False)
            plan = dataclasses.replace(plan, driven=driven, isolate=isolate)
        timeout = item.stash.get(_TIMEOUT, None)
        if timeout is not None:
            plan = dataclasses.replace(plan, timeout=min(timeout, plan.timeout))
        return plan

    def _planned_run(self, item: pytest.Item, planned: PlannedRun) -> LaunchPlan:
        test = planned.item or item
        plan = self._planned(test)
        name = plan.nodeid if planned.seed_name is None else planned.seed_name
        seeds = make_seeds(name, test.stash[MARK], self._options, plan.world_size)
        isolate = plan.isolate or planned.isolate
        return dataclasses.replace(plan, seeds=seeds, isolate=isolate)

    def order(
        self,
        item: pytest.Item,
        next_item: pytest.Item | None,
        planned: PlannedRun | None,
        plan: LaunchPlan,
        tmp_path: str,
    ) -> RunRequest:
        """The order for an attempt by this plan; ``tmp_path`` is for the test's ranks."""
        following, known = None, False  # a plan's next run depends on the result of this one
        if planned is None:
            following, known = self._next_of_world(item, next_item, plan.world)
        next_state = "" if following is None else self._planned(following).module_state
        return RunRequest(
            plan=plan,
            item=item,
            next_item=following,
            next_is_known=known,
            ends_module_state=plan.module_state not in ("", next_state),
            tmp_path=tmp_path,
            live=self._live,
            terminal=self._terminal,
            log_level=listening_level(self._config),
            planned=planned,
        )

    def _planned(self, item: pytest.Item) -> LaunchPlan:
        # Cached, since each test before this one needs its plan too, as that of the next test.
        if item not in self._plans:
            self._plans[item] = self._made(item)
        return self._plans[item]

    def _made(self, item: pytest.Item) -> LaunchPlan:
        return make_plan(item, item.stash[MARK], self._options, self._layout)

    @functools.cached_property
    def _layout(self) -> Layout:
        layout: Layout | None = self._config.hook.pytest_ddp_make_layout(config=self._config)
        return layout or OneMachine(gpus.count_gpus(), gpus.device_kind())

    def _next_of_world(
        self, item: pytest.Item, next_item: pytest.Item | None, world: World
    ) -> tuple[pytest.Item | None, bool]:
        """The next test on the ranks of a world; and False if None only means that it is
        unknown."""
        if next_item is None:
            return None, True
        if hasattr(self._config, "workerinput"):
            # An xdist worker only knows the next item.
            following, known = iter([next_item] if MARK in next_item.stash else []), False
        else:
            following = itertools.islice(self.items, self._positions[item] + 1, None)
            known = True
        plans = ((other, self.plan(other)) for other in following)
        of_world = (other for other, plan in plans if plan.skip is None and plan.world == world)
        return next(of_world, None), known
