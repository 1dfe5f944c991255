"""What ranks are to be told of each ddp test: its plan, and which one comes after it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools

import pytest

from pytest_ddp.asked.layout import Layout, OneMachine
from pytest_ddp.asked.marks import MARK
from pytest_ddp.asked.options import Options
from pytest_ddp.asked.plan import LaunchPlan, make_plan
from pytest_ddp.attempt.display import listening_level
from pytest_ddp.attempt.live import LiveLine
from pytest_ddp.attempt.order import Order
from pytest_ddp.attempt.terminal import Terminal
from pytest_ddp.launch import gpus
from pytest_ddp.wire.hosting import World

_TIMEOUT = pytest.StashKey[float]()
"""What pytest-timeout wants of a test, in seconds."""
_AHEAD = 64
"""Tests that are planned with one: one right after the other, each takes a part of the time."""

_DRIVEN = pytest.StashKey[bool]()
_DOUBTFUL = pytest.StashKey[bool]()  # it failed so that fresh ranks are to run it again


class Orders:
    """Plans of a session's ddp tests, and the orders that follow."""

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
        """Collection is over: take the ddp tests among all."""
        self.items = [item for item in items if MARK in item.stash]
        self._positions = {item: position for position, item in enumerate(self.items)}

    def set_timeout(self, item: pytest.Item, seconds: float) -> None:
        """Bound a test by pytest-timeout's word, if that is shorter than our own."""
        item.stash[_TIMEOUT] = seconds

    def set_driven(self, item: pytest.Item) -> None:
        """Keep plugins in ranks from running a test again: one decides here how often."""
        item.stash[_DRIVEN] = True

    def set_doubtful(self, item: pytest.Item, doubtful: bool) -> None:
        """Have fresh ranks run it, should it run again."""
        item.stash[_DOUBTFUL] = doubtful

    def plan(self, item: pytest.Item) -> LaunchPlan:
        """How the next attempt at a test is to run.

        Raises:
            NoRankError: a layout of several machines waits for them, and one does not come.
            HostDiedError: the same.
        """
        plan = self._planned(item)
        if item.stash.get(_DRIVEN, False):
            isolate = plan.isolate or item.stash.get(_DOUBTFUL, False)
            plan = dataclasses.replace(plan, driven=True, isolate=isolate)
        timeout = item.stash.get(_TIMEOUT, None)
        if timeout is not None:
            plan = dataclasses.replace(plan, timeout=min(timeout, plan.timeout))
        return plan

    def order(
        self,
        item: pytest.Item,
        next_item: pytest.Item | None,
        plan: LaunchPlan,
        tmp_path: str,
    ) -> Order:
        """What is wanted of an attempt by this plan; ``tmp_path`` is for the test's ranks."""
        following, known = self._next_of_world(item, next_item, plan.world)
        family = "" if following is None else self._planned(following).family
        ends = family != plan.family and plan.family != ""
        told = self._live, self._terminal, listening_level(self._config)
        return Order(plan, item, following, known, ends, tmp_path, *told)

    def _planned(self, item: pytest.Item) -> LaunchPlan:
        # Once for an item, which each test before it looks at too.
        if item not in self._plans:
            self._plans[item] = self._made(item)
            begin = self._positions.get(item, len(self.items)) + 1
            with contextlib.suppress(pytest.UsageError):  # told when its turn comes
                for other in self.items[begin : begin + _AHEAD]:
                    self._plans[other] = self._made(other)
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
        """The next test of the same ranks, and whether None means that there is none."""
        if next_item is None:
            return None, True
        if hasattr(self._config, "workerinput"):
            # An xdist worker knows one item ahead.
            following, known = iter([next_item] if MARK in next_item.stash else []), False
        else:
            following = itertools.islice(self.items, self._positions[item] + 1, None)
            known = True
        plans = ((other, self.plan(other)) for other in following)
        mates = (other for other, plan in plans if plan.skip is None and plan.world == world)
        return next(mates, None), known
