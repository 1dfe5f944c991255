"""The life of a rank: wait for an item, run it under pytest's own protocol, clean up."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from pytest_ddp import fixture
from pytest_ddp.fixture import Ddp
from pytest_ddp.rank.adapt import fixtures, loghandlers, output
from pytest_ddp.rank.adapt.debugger import Ask, Debugger, Place
from pytest_ddp.rank.adapt.livelogs import LiveLogs
from pytest_ddp.rank.adapt.phases import Phases
from pytest_ddp.rank.adapt.properties import Properties
from pytest_ddp.rank.adapt.setupshow import SetupShow
from pytest_ddp.rank.adapt.subtests import Subtests
from pytest_ddp.rank.adapt.tracebacks import Tracebacks, line_of, text_of
from pytest_ddp.rank.birth.collection import Collection
from pytest_ddp.rank.birth.guests import Guests, run_undriven
from pytest_ddp.rank.care import device, seeding
from pytest_ddp.rank.care.care import Care
from pytest_ddp.rank.care.garbage import Garbage
from pytest_ddp.rank.care.modulestate import ModuleState, packages_of_plugins
from pytest_ddp.rank.environment import RankEnvironment
from pytest_ddp.rank.exits import exiting, faults
from pytest_ddp.rank.groups.rendezvous import EnvRendezvous
from pytest_ddp.rank.groups.ties import Ties
from pytest_ddp.rank.link import Link
from pytest_ddp.rank.watch.instruments import Instruments
from pytest_ddp.rank.watch.standing import recorder_problem
from pytest_ddp.system.own import os
from pytest_ddp.wire.hosting import StartRank
from pytest_ddp.wire.kept import Kept
from pytest_ddp.wire.marker import IMPORT
from pytest_ddp.wire.protocol import (
    Began,
    Done,
    Finished,
    Left,
    NotBegun,
    Phase,
    PhaseReported,
    RankReady,
    RunTest,
    Warned,
)
from pytest_ddp.wire.survey import Traffic


class Runner:
    """A pytest plugin and the loop that drives it."""

    def __init__(
        self,
        link: Link,
        instruments: Instruments,
        place: StartRank,
        environment: RankEnvironment,
        rendezvous: EnvRendezvous,
        session: pytest.Session,
        collection: Collection,
        live_logs: LiveLogs,
    ) -> None:
        self._link = link
        self._place = place
        self._lifecycle, self._group, self._side_channel, self._surveyor, page = instruments
        self._session = session
        self._config = session.config
        self._kept = Kept(page, session.config)
        self._collection = collection
        self._live_logs = live_logs
        self._rendezvous = rendezvous
        self._care = Care(self._group.journal.asked_for)
        self._environment, self._variables = environment, place.environment
        self._garbage = Garbage(self._lifecycle)
        self._setup_show = SetupShow(self._config)
        self._subtests = Subtests(self._config, self._kept)
        self._ties = Ties(self._group, self._side_channel)
        self._phases = Phases(self._lifecycle, self._care, self._ties)
        self._properties = Properties()
        self._ddp = self._make_ddp()
        self._debugger = self._link.debugger = self._make_debugger()
        self._log_handlers = loghandlers.Together.of_phases(self._config)
        self._reseeder = seeding.Reseeder(self._config.option)
        self._modules: ModuleState | None = None
        self._in_doubt = False
        self._is_unclear = False
        """Whether threads that fixtures keep have begun sends or receives."""
        self._is_used = False
        self._is_broken_off = False
        """Whether some phase of the test did not come to its end."""
        guests: Any = self._config.pluginmanager.get_plugin(Guests.NAME)
        self._shortcomings = [(text, __file__) for text in guests.problems]
        if problem := recorder_problem():
            self._shortcomings.append((problem, str(dist.__file__)))

    def live(self) -> NoReturn:
        """Run tests until told to finish; the process ends here."""
        watchers = (self._phases, self._care, self._properties, self._ties, Tracebacks())
        for plugin in (self, self._debugger, *watchers):
            self._config.pluginmanager.register(plugin)
        loghandlers.attach_at_once(self._log_handlers)
        files = output.capture_files(self._config)
        ready = RankReady(self._place.serial, os.getpid(), tuple(files))
        self._link.send(ready, tuple(files.values()))
        try:
            self._serve()
        except KeyboardInterrupt:
            """Ctrl-C between two tests, passed on by the controller: finish as well."""
        self._finish()
        faults.leave(0)

    def _make_debugger(self) -> Debugger:
        place, link = self._place, self._link
        ask = Ask(link.want_terminal, link.leave_terminal)
        history = os.path.join(place.folder, "pdb-history") if place.folder else ""
        where = Place(place.rank, place.world.world_size)
        return Debugger(self._config, self._group.journal, ask, where, history)

    def _serve(self) -> None:
        while True:
            order, descriptors = self._link.next_order()
            if not isinstance(order, RunTest):
                return
            self._run(order, descriptors)

    # ------------------------------------------------------------------ one test

    def _run(self, order: RunTest, descriptors: list[int]) -> None:
        listening, store = descriptors[: order.serve_store], descriptors[order.serve_store :]
        self._link.test = order.test
        self._variables = self._variables | order.environment
        self._environment.apply(self._variables)
        self._lifecycle.begin(Phase.SETUP.value)
        self._side_channel.begin(self._place.world.world_size)
        self._surveyor.begin()
        try:
            keeps = self._group.is_of_others()
            by_port = order.new_store and not order.by_file
            serve_now = order.store is None or by_port
            self._rendezvous.begin(listening, serve_now=serve_now, keeps=keeps)
            self._collect(order.file)
            item = self._collection.item(order.nodeid)
            if item is None:
                missing = self._collection.missing(order.nodeid, order.file)
                self._link.send(NotBegun(order.test, missing, self._is_used))
                return
            if order.env:
                self._environment.apply(self._variables | order.env)
            phases = self._lifecycle.torch_phases
            self._group.prepare(order.store, store, self._rendezvous.store, order.keys)
            self._garbage.spare_group(self._lifecycle.torch_phases - phases)
        except Exception as error:
            problem = "the process group could not be built:\n" + text_of(error)
            self._link.send(NotBegun(order.test, problem, True))
            return
        if order.together:
            self._link.send(Began(order.test))
            with self._surveyor.at_start():
                self._link.wait_for_go(order.test)
        self._kept.begin(order.test)
        self._link.send(self._run_item(order, item))

    def _collect(self, file: str) -> None:
        if not self._collection.has(file):
            self._modules = None
            self._log_handlers.detach()
            seeding.unseed()
            # Code of the file itself, which gives the phase its place.
            importing = self._lifecycle.enter_function(IMPORT, compile("", file, "exec"))
            with self._group.hidden(), self._live_logs.collecting():
                self._collection.collect(self._session, [file])
            self._lifecycle.leave(importing)
            self._garbage.spare_collected()

    def _warn_of_shortcomings(self) -> None:
        # All ranks say the same, and so it is told once.
        while self._shortcomings:
            self._link.warn(*self._shortcomings.pop())

    def _run_item(self, order: RunTest, item: pytest.Item) -> Done:
        self._is_used, self._is_broken_off = True, False
        self._warn_of_shortcomings()
        seed = order.seeds[self._place.rank]
        seeding.seed_everything(seed)
        self._reseeder.begin(seed)
        fixture.set_current(self._ddp)
        own = [f"rank{self._place.rank}"] if order.own_tmp_path else []
        fixtures.set_tmp_path(os.path.join(order.tmp_path, *own))
        self._phases.begin()
        self._subtests.begin()
        self._properties.seed = order.seeds[0]
        if order.of_family and self._modules is None:
            self._modules = ModuleState(packages_of_plugins(self._config))
        self._config.hook.pytest_ddp_test_begins(item=item, sent=order.from_plugins)
        self._live_logs.begin(order.log_level)
        self._care.begin()
        self._debugger.begin()
        exit_reason, exit_code = self._run_protocol(order, item)
        self._debugger.end()
        output.flush()
        fixture.set_current(None)
        self._surveyor.end()
        self._garbage.collect(alone=self._care.ended_alone)
        counts = self._group.counts()
        ends = self._config.hook.pytest_ddp_test_ended(item=item)
        return Done(
            test=order.test,
            passed=self._kept.passed(),
            counts=counts,
            group_doubt=self._group_doubt(),
            tied=self._ties.hold() or self._group.is_of_others(),
            together=self._ties.hold_together(),
            rank_doubt=self._rank_doubt(item),
            met=self._rendezvous.has_met(),
            spent=self._spent(),
            modules_changed=order.ends_family and self._modules_changed(),
            changes=self._care.changes,
            setup_show=self._setup_show.take(),
            exit_reason=exit_reason,
            exit_code=exit_code,
            from_plugins={name: sent for each in ends for name, sent in each.items()},
            traffic=self._traffic(),
        )

    def _traffic(self) -> Traffic | None:
        beside = self._is_unclear or self._group.journal.beside
        self._is_unclear = beside and self._care.keeps_threads()
        return self._group.traffic(unclear=self._is_unclear)

    def _modules_changed(self) -> bool:
        return self._modules is None or self._modules.has_changed()

    def _make_ddp(self) -> Ddp:
        rank, world = self._place.rank, self._place.world
        ddp = Ddp(
            rank,
            world.world_size,
            world.local_rank(rank),
            world.backend,
            world.device,
            None if world.devices is None else world.devices[rank],
            self._link.exchange,
            self._lifecycle.phase,
        )
        for attributes in self._config.hook.pytest_ddp_fixture_attributes(ddp=ddp):
            vars(ddp).update(attributes)
        return ddp

    def _run_protocol(self, order: RunTest, item: pytest.Item) -> tuple[str | None, int | None]:
        """Run the item; the reason and the code of a ``pytest.exit``, if there was one."""
        next_item = self._next_item(order, item)
        run = run_undriven if order.driven else item.ihook.pytest_runtest_protocol
        try:
            run(item=item, nextitem=next_item)
        except pytest.exit.Exception as exit_:
            self._tear_down_to(next_item)
            return exit_.msg, exit_.returncode
        return None, None

    def _tear_down_to(self, next_item: pytest.Item | None) -> None:
        """Do what a ``pytest.exit`` has cut off, and the other ranks do now."""
        try:
            self._session._setupstate.teardown_exact(next_item)
        except BaseException as error:
            self._link.send(Finished(text_of(error)))

    def _group_doubt(self) -> str | None:
        if self._care.has_more_groups:
            return "there are more process groups than before"
        if self._is_broken_off and self._group.is_unnumbered():
            return "nobody can tell whether the ranks left its backend in step"
        return self._group.doubt()

    def _spent(self) -> bool:
        # Of device meshes nothing can be kept on GPUs: what torch remembers of them is also in
        # autograd's own thread for each GPU, where nobody can clear it.
        has_gpu = self._place.world.devices is not None
        return self._care.spent() or (has_gpu and self._care.has_more_groups)

    def _rank_doubt(self, item: pytest.Item) -> tuple[Left, ...]:
        doubts = [*self._care.strangers, *self._care.more_stores(), *device.broken()]
        keeps, own = self._place.world.keeps_group, self._group.is_of_others()
        if own and self._care.has_other_default_group and not keeps:
            doubts.append(Left("a default process group of its own"))
        if error := self._phases.broke_fixture:
            doubts.append(Left(f"a fixture that was broken off by {error}"))
        elif item in self._session._setupstate.stack:
            doubts.append(Left("fixtures that were not torn down"))
        self._in_doubt |= bool(doubts)
        return tuple(doubts)

    def _next_item(self, order: RunTest, item: pytest.Item) -> pytest.Item | None:
        if order.next_nodeid is not None and order.next_file is not None:
            following: pytest.Item | None
            following = self._collection.chain_to(order.next_nodeid, order.next_file)
            return following
        if order.next_is_known:
            return None
        # The future is unknown under xdist: everything wider than the item stays up.
        # pytest asks the next item for its chain of collectors only, and a collector
        # answers that as well.
        parent: Any = item.parent
        return parent  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        problems: list[BaseException] = []
        self._log_handlers.detach()
        self._side_channel.begin(self._place.world.world_size)
        self._live_logs.set_when("teardown")
        for step in (
            lambda: self._session._setupstate.teardown_exact(None),
            lambda: self._config.hook.pytest_sessionfinish(session=self._session, exitstatus=0),
            self._config._ensure_unconfigure,
            faults.enable,
        ):
            exiting.attempt(step, problems)
        end = exiting.run_handlers(told=self._in_doubt)
        for error in end.raised:
            words, file, line = line_of(error)
            self._link.warn(f"raised at the end of the rank: {words}", file, line)
        self._link.send(Finished("\n".join((*map(text_of, problems), *end.stuck)) or None))
        self._group.destroy()

    # ------------------------------------------------------------------ pytest's hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        missing = self._group.missing
        if missing is None:
            return
        if missing.is_of_the_machine:
            raise pytest.skip.Exception(missing.reason, _use_item_location=True)
        asked = f"backend={self._place.world.backend!r}"
        pytest.fail(f"{asked}: {missing.reason}", pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._link.check()
        self._is_broken_off |= not report.passed
        if subtest := self._subtests.take(report, self._link.test):
            self._link.send(subtest)
            return
        if self._kept.take(report):
            return
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        # The end of the test follows on the heels of its teardown.
        last = report.when == "teardown"
        self._link.send(PhaseReported(self._link.test, data), more=last)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        if when != "runtest":
            return  # told by the controller, which collects the same files
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
