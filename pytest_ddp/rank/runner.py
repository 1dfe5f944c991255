"""The life of a rank: wait for an item, run it under pytest's own protocol, clean up."""

from __future__ import annotations

import traceback
import warnings
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from pytest_ddp import fixture
from pytest_ddp.fixture import Ddp
from pytest_ddp.protocol import (
    Began,
    Done,
    Finished,
    NotBegun,
    Phase,
    PhaseReported,
    RankReady,
    RunTest,
    Warned,
)
from pytest_ddp.rank import faults, fixtures, output, seeding
from pytest_ddp.rank.care import Care
from pytest_ddp.rank.environment import RankEnvironment
from pytest_ddp.rank.garbage import Garbage
from pytest_ddp.rank.instruments import Instruments
from pytest_ddp.rank.link import Link
from pytest_ddp.rank.phases import Phases
from pytest_ddp.rank.properties import Properties
from pytest_ddp.rank.rendezvous import EnvRendezvous
from pytest_ddp.rank.session import Items
from pytest_ddp.rank.setupshow import SetupShow
from pytest_ddp.rank.standing import recorder_problem
from pytest_ddp.rank.ties import Ties


class Runner:
    """A pytest plugin and the loop that drives it."""

    def __init__(
        self, link: Link, instruments: Instruments, session: pytest.Session, items: Items
    ) -> None:
        self._link = link
        self._lifecycle, self._group, self._side_channel, self._surveyor = instruments
        self._session = session
        self._config = session.config
        self._items = items
        self._rendezvous = EnvRendezvous()
        self._care = Care()
        self._environment = RankEnvironment()
        self._garbage = Garbage(self._lifecycle)
        self._setup_show = SetupShow(self._config)
        self._phases = Phases(self._lifecycle)
        self._properties = Properties()
        self._ties = Ties(self._group)
        self._recorder_problem = recorder_problem()

    def live(self, serial: int, pid: int) -> NoReturn:
        """Run tests until told to finish; the process ends here."""
        for plugin in (self, self._phases, self._care, self._properties, self._ties):
            self._config.pluginmanager.register(plugin)
        files = output.capture_files(self._config)
        self._link.send(RankReady(serial, pid, tuple(files)), tuple(files.values()))
        try:
            self._serve()
        except KeyboardInterrupt:
            """Ctrl-C between two tests, passed on by the controller: finish as well."""
        self._finish()
        faults.leave(0)

    def _serve(self) -> None:
        while True:
            order, descriptors = self._link.next_order()
            if not isinstance(order, RunTest):
                return
            self._run(order, descriptors)

    # ------------------------------------------------------------------ one test

    def _run(self, order: RunTest, listening: list[int]) -> None:
        self._link.test = order.test
        item = self._items.by_nodeid.get(order.nodeid)
        if item is None:
            self._link.send(NotBegun(order.test, self._missing(order.nodeid), False))
            return
        self._environment.apply(order.env)
        self._lifecycle.begin(Phase.SETUP.value)
        self._side_channel.begin(order.world_size)
        self._surveyor.begin()
        try:
            self._rendezvous.begin(listening, serve_now=order.group is None)
            built = self._group.prepare(order)
        except Exception:
            problem = "the process group could not be built:\n" + traceback.format_exc()
            self._link.send(NotBegun(order.test, problem, True))
            return
        self._link.send(Began(order.test, built), more=not built)
        if built:
            self._link.wait_for_go(order.test)
        self._link.send(self._run_item(order, item))

    def _warn_without_recorder(self) -> None:
        # All ranks say the same, and so it is told once.
        problem, self._recorder_problem = self._recorder_problem, ""
        if problem:
            category, place = "pytest_ddp.messages:DdpWarning", str(dist.__file__)
            self._link.send(Warned(category, problem, place, 1, "runtest", ""))

    def _run_item(self, order: RunTest, item: pytest.Item) -> Done:
        self._warn_without_recorder()
        seeding.seed_everything(order.seed)
        fixture.set_current(
            Ddp(
                order.rank,
                order.world_size,
                str(order.backend),
                order.device_index,
                self._link.exchange,
                self._lifecycle.phase,
            )
        )
        fixtures.share_tmp_path(order.tmp_path)
        self._phases.broke_fixture = False
        self._properties.seed = order.shared_seed
        self._care.begin()
        exit_reason, exit_code = self._run_protocol(item, self._next_item(order, item))
        fixture.set_current(None)
        self._surveyor.end()
        self._garbage.collect()
        counts = self._group.counts()
        return Done(
            test=order.test,
            counts=counts,
            group_doubt=self._group.doubt(),
            tied=self._ties.hold(),
            rank_doubt=self._rank_doubt(),
            changes=self._care.changes,
            setup_show=self._setup_show.take(),
            exit_reason=exit_reason,
            exit_code=exit_code,
        )

    def _run_protocol(
        self, item: pytest.Item, next_item: pytest.Item | None
    ) -> tuple[str | None, int | None]:
        """Run the item; the reason and the code of a ``pytest.exit``, if there was one."""
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=next_item)
        except pytest.exit.Exception as exit_:
            return exit_.msg, exit_.returncode
        return None, None

    def _rank_doubt(self) -> tuple[str, ...]:
        doubts = list(self._care.strangers)
        if self._group.left_behind():
            doubts.append("the default process group (the mark says init=False)")
        if self._phases.broke_fixture:
            doubts.append("a fixture that was broken off by an interrupt")
        return tuple(doubts)

    def _next_item(self, order: RunTest, item: pytest.Item) -> pytest.Item | None:
        if order.next_nodeid is not None:
            return self._items.by_nodeid.get(order.next_nodeid)
        if order.next_is_known:
            return None
        # The future is unknown under xdist: everything wider than the item stays up.
        # pytest asks the next item for its chain of collectors only, and a collector
        # answers that as well.
        parent: Any = item.parent
        return parent  # type: ignore[no-any-return]

    def _missing(self, nodeid: str) -> str:
        if self._items.errors:
            return "its file could not be collected in the rank:\n" + "\n".join(self._items.errors)
        path = nodeid.partition("::")[0]
        alike = sum(known.partition("::")[0] == path for known in self._items.by_nodeid)
        return (
            f"the rank collected {alike} tests from {path}, but not this one\n"
            "Collection differs between two processes. Make parameters and ids deterministic: no\n"
            "random or uuid values, no sets, no times in parametrize (or seed them)."
        )

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        problem = None
        try:
            self._session._setupstate.teardown_exact(None)
            self._config.hook.pytest_sessionfinish(session=self._session, exitstatus=0)
        except BaseException:
            problem = traceback.format_exc()
        self._link.send(Finished(problem))
        self._group.destroy()

    # ------------------------------------------------------------------ pytest's hooks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        # The end of the test follows on the heels of its teardown.
        last = report.when == "teardown"
        self._link.send(PhaseReported(self._link.test, data), more=last)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        category = warning_message.category
        self._link.send(
            Warned(
                category=f"{category.__module__}:{category.__qualname__}",
                message=str(warning_message.message),
                filename=warning_message.filename,
                lineno=warning_message.lineno,
                when=when,
                nodeid=nodeid,
            )
        )
