"""Plans each ddp test of a session, and makes the order for an attempt at it."""

from __future__ import annotations

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
"""The timeout of pytest-timeout for a test, in seconds."""
_DRIVEN = pytest.StashKey[bool]()
"""Whether a plugin of the pytest process decides how often the test runs."""
_DOUBTFUL = pytest.StashKey[bool]()
"""Whether the last attempt failed in a way after which the next one needs fresh ranks."""


class Orders:
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

    def plan(self, item: pytest.Item) -> LaunchPlan:
        """The plan for the next attempt at a test.

        Raises:
            NoRankError: the layout waits for other machines, and one does not connect.
            HostDiedError: the process that holds the connections to them has died.
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
        """The order for an attempt by this plan; ``tmp_path`` is for the test's ranks."""
        following, known = self._next_of_world(item, next_item, plan.world)
        family = "" if following is None else self._planned(following).family
        return Order(
            plan=plan,
            item=item,
            next_item=following,
            next_is_known=known,
            ends_family=family != plan.family and plan.family != "",
            tmp_path=tmp_path,
            live=self._live,
            terminal=self._terminal,
            log_level=listening_level(self._config),
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
        """The next test on the same ranks; and False if None only means that it is unknown."""
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
