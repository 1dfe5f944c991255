"""The loop of a rank: wait for an item, run it under pytest's own protocol, clean up."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from pytest_ddp import fixture
from pytest_ddp.fixture import Ddp
from pytest_ddp.protocol.buffered_reports import BufferedReports
from pytest_ddp.protocol.host_messages import StartRank
from pytest_ddp.protocol.messages import (
    Began,
    Done,
    Finished,
    Leak,
    NotBegun,
    Parameter,
    Phase,
    PhaseReported,
    RankReady,
    RunTest,
    Warned,
)
from pytest_ddp.protocol.rank_status import Traffic
from pytest_ddp.protocol.status_page import IMPORT
from pytest_ddp.rank.cleanup import cleanup, seeding
from pytest_ddp.rank.cleanup.cleanup import Cleanup
from pytest_ddp.rank.cleanup.garbage import GarbageCollection
from pytest_ddp.rank.cleanup.module_state import ModuleState, packages_of_plugins
from pytest_ddp.rank.environment import RankEnvironment
from pytest_ddp.rank.exits import crash_stacks, exiting
from pytest_ddp.rank.groups import torch_state
from pytest_ddp.rank.groups.env_rendezvous import EnvRendezvous
from pytest_ddp.rank.groups.group_fixtures import GroupFixtures
from pytest_ddp.rank.hooks import fixtures, log_handlers, output
from pytest_ddp.rank.hooks.debugger import PromptPlace, RankDebugger, TerminalAccess
from pytest_ddp.rank.hooks.expected_failures import ExpectedFailures
from pytest_ddp.rank.hooks.log_handlers import LiveLogs
from pytest_ddp.rank.hooks.phases import PhaseHooks
from pytest_ddp.rank.hooks.property_tests import Properties
from pytest_ddp.rank.hooks.stand_ins import SetupShow, Subtests
from pytest_ddp.rank.hooks.tracebacks import Tracebacks, line_of, text_of
from pytest_ddp.rank.link import Link
from pytest_ddp.rank.startup.collection import Collection
from pytest_ddp.rank.startup.plugin_filter import PluginFilter, run_without_drivers
from pytest_ddp.rank.status.instruments import Instruments
from pytest_ddp.rank.status.status_reporter import recorder_problem
from pytest_ddp.system.stdlib import os

# Overview
#
# A rank runs tests on its main thread, one after another. The thread of `Link` reads the channel at
# all times: it answers probes itself, and queues orders for `Runner`. No field holds the rank's
# state: it is the place where the main thread is. The controller follows it by the messages.
#
#   state      the main thread is in       who moves it there             next state
#   ---------  --------------------------  -----------------------------  ------------------------
#   starting   `live`, until `RankReady`   the host: it has forked        idle
#   idle       `_serve`, `next_request`      the rank: `RankReady`, `Done`  preparing or finishing
#                                          or `NotBegun` is sent
#   preparing  `_run`: environment,        the controller: `RunTest`      ready, running; idle after
#              `_collect`, `prepare`                                      `NotBegun`
#   ready      `wait_for_go`               the rank sends `Began`, if     running, by the
#                                          the request `waits_for_go`    controller's Go
#   running    `_run_protocol` in          the rank                       cleaning
#              `_run_item`; a
#              `PhaseReported` for each
#              phase that `_kept` does
#              not take
#   cleaning   the rest of `_run_item`     the rank: the protocol has     idle after `Done`
#                                          returned or `pytest.exit`
#   finishing  `_finish`                   any other order, or Ctrl-C     the process ends, by
#                                          between two tests              `leave`, after `Finished`
#
# A death in any state needs no code here: the host reaps the process, and the controller concludes
# the rest from its page and its files.
#
# The order within cleaning matters: the debugger ends before output is flushed, as it restores the
# standard streams; `_status_reporter` ends before garbage is collected, so that a probe in between
# sees a test that is over; groups are counted after that, as the collection may free some.
#
# What a test may leave to the next ones in this process:
#
#   field             set by                               read by
#   ----------------  -----------------------------------  ---------------------------------------
#   `_is_used`        `_run_item`, for good                `NotBegun`: a new rank may do better
#   `_is_broken_off`  a report that did not pass; reset    `_group_doubt`: ranks may be out of step
#                     for each test
#   `_modules`        first test with a `module_state`;    `_modules_changed`
#                     reset when a file is collected
#   `_is_unclear`     messages of fixtures' threads;       `_traffic`: nothing is concluded from
#                     reset when these have ended          counts of messages
#   `_in_doubt`       any leak, for good                   `_finish`: no long wait for threads and
#                                                          children that are reported already


class Runner:
    """A pytest plugin and the loop that drives it."""

    def __init__(
        self,
        link: Link,
        instruments: Instruments,
        start: StartRank,
        environment: RankEnvironment,
        rendezvous: EnvRendezvous,
        session: pytest.Session,
        collection: Collection,
        live_logs: LiveLogs,
    ) -> None:
        self._link = link
        self._place = start
        self._phase_stack, self._group, self._side_channel, self._status_reporter, page = (
            instruments
        )
        self._session = session
        self._config = session.config
        self._buffered = BufferedReports(page, session.config)
        self._collection = collection
        self._live_logs = live_logs
        self._rendezvous = rendezvous
        self._cleanup = Cleanup(self._group.journal.asked_for)
        self._environment, self._variables = environment, start.environment
        self._garbage = GarbageCollection(self._phase_stack)
        self._setup_show = SetupShow(self._config)
        self._subtests = Subtests(self._config, self._buffered)
        self._group_fixtures = GroupFixtures(self._group, self._side_channel)
        self._phases = PhaseHooks(self._phase_stack, self._cleanup, self._group_fixtures)
        self._properties = Properties()
        self._ddp = self._make_ddp()
        self._debugger = self._link.debugger = self._make_debugger()
        self._log_handlers = log_handlers.AttachedHandlers.of_phases(self._config)
        self._reseeder = seeding.Reseeder(self._config.option)
        self._modules: ModuleState | None = None
        self._refusals: dict[str, str] = {}
        """Why tests of the last collected file must not begin, by node id."""
        self._in_doubt = False
        self._is_unclear = False
        """Whether threads of fixtures may have begun sends or receives."""
        self._is_used = False
        self._is_broken_off = False
        """Whether a phase of the test did not pass."""
        plugin_filter: Any = self._config.pluginmanager.get_plugin(PluginFilter.NAME)
        self._shortcomings = [(text, __file__) for text in plugin_filter.problems]
        if problem := recorder_problem():
            self._shortcomings.append((problem, str(dist.__file__)))

    def live(self) -> NoReturn:
        """Run tests until the order to finish; the process ends here."""
        watchers = (self._phases, self._cleanup, self._properties, self._group_fixtures)
        for plugin in (self, self._debugger, *watchers, Tracebacks(), ExpectedFailures()):
            self._config.pluginmanager.register(plugin)
        log_handlers.attach_at_once(self._log_handlers)
        files = output.capture_files(self._config)
        ready = RankReady(self._place.serial, os.getpid(), tuple(files))
        self._link.send(ready, tuple(files.values()))
        # Ctrl-C between two tests, which the controller passes on: finish as well.
        with contextlib.suppress(KeyboardInterrupt):
            self._serve()
        self._finish()
        crash_stacks.exit_now(0)

    def _make_debugger(self) -> RankDebugger:
        place, link = self._place, self._link
        ask = TerminalAccess(link.want_terminal, link.leave_terminal)
        history = os.path.join(place.folder, "pdb-history") if place.folder else ""
        where = PromptPlace(place.rank, place.world.world_size)
        return RankDebugger(self._config, self._group.journal.operations, ask, where, history)

    def _serve(self) -> None:
        # Ends with the order to finish.
        while True:
            order, descriptors = self._link.next_request()
            if not isinstance(order, RunTest):
                return
            self._run(order, descriptors)

    # ------------------------------------------------------------------ one test

    def _run(self, run_test: RunTest, descriptors: list[int]) -> None:
        listening, store = descriptors[: run_test.serve_store], descriptors[run_test.serve_store :]
        self._link.test = run_test.test
        self._variables = self._variables | run_test.environment
        self._environment.apply(self._variables)
        self._phase_stack.begin(Phase.SETUP.value)
        self._side_channel.begin(self._place.world.world_size)
        self._status_reporter.begin()
        try:
            keeps = self._group.is_users()
            by_port = run_test.new_store and not run_test.by_file
            serve_now = run_test.store is None or by_port
            self._rendezvous.begin(listening, serve_now=serve_now, keeps=keeps)
            self._collect(run_test.file)
            item = self._collection.item(run_test.nodeid)
            if item is None:
                missing = self._collection.missing(run_test.nodeid, run_test.file)
                self._link.send(NotBegun(run_test.test, missing, self._is_used))
                return
            if run_test.env:
                self._environment.apply(self._variables | run_test.env)
            phases = self._phase_stack.torch_phases
            self._group.prepare(run_test.store, store, self._rendezvous.store, run_test.keys)
            self._garbage.spare_group(self._phase_stack.torch_phases - phases)
        except Exception as error:
            problem = "the process group could not be built:\n" + text_of(error)
            self._link.send(NotBegun(run_test.test, problem, True))
            return
        if run_test.waits_for_go:
            self._link.send(Began(run_test.test, self._parameters(run_test.file)))
            with self._status_reporter.at_start():
                self._refusals = self._link.wait_for_go(run_test.test).refusals
        if (refusal := self._refusals.get(run_test.nodeid)) is not None:
            self._link.send(NotBegun(run_test.test, refusal, False))
            return
        self._buffered.begin(run_test.test)
        self._link.send(self._run_item(run_test, item))

    def _parameters(self, file: str) -> tuple[Parameter, ...]:
        """The parameters of a file, unless all ranks of this world are forks of one process."""
        world = self._place.world
        if self._collection.is_own_interpreters or len({*world.nodes}) > 1:
            return tuple(self._collection.parameters(file))
        return ()

    def _collect(self, file: str) -> None:
        if not self._collection.has(file):
            self._modules = None
            self._log_handlers.detach()
            seeding.unseed()
            # Code that has the file's name: the phase takes its place from it.
            importing = self._phase_stack.enter_function(IMPORT, compile("", file, "exec"))
            with self._group.hidden(), self._live_logs.collecting():
                self._collection.collect(self._session, [file])
            self._phase_stack.leave(importing)
            self._garbage.spare_collected()

    def _warn_of_shortcomings(self) -> None:
        # All ranks have the same ones; the controller shows them once.
        while self._shortcomings:
            self._link.warn(*self._shortcomings.pop())

    def _run_item(self, run_test: RunTest, item: pytest.Item) -> Done:
        self._is_used, self._is_broken_off = True, False
        self._warn_of_shortcomings()
        seed = run_test.seeds[self._place.rank]
        seeding.seed_everything(seed)
        self._reseeder.begin(seed)
        fixture.set_current(self._ddp)
        own = [f"rank{self._place.rank}"] if run_test.own_tmp_path else []
        fixtures.set_tmp_path(os.path.join(run_test.tmp_path, *own))
        self._phases.begin()
        self._subtests.begin()
        self._properties.seed = run_test.seeds[0]
        if run_test.is_planned:
            # pytest keeps both with the item, as if the runs were phases of one.
            item._report_sections.clear()
            item.user_properties.clear()
        if run_test.shares_module_state and self._modules is None:
            self._modules = ModuleState(packages_of_plugins(self._config))
        self._config.hook.pytest_ddp_test_begins(item=item, sent=run_test.from_plugins)
        self._live_logs.begin(run_test.log_level)
        self._cleanup.begin()
        self._debugger.begin()
        exit_reason, exit_code = self._run_protocol(run_test, item)
        self._debugger.end()
        output.flush()
        fixture.set_current(None)
        self._status_reporter.end()
        self._garbage.collect(alone=self._cleanup.ended_alone)
        counts = self._group.counts()
        ends = self._config.hook.pytest_ddp_test_ended(item=item)
        return Done(
            test=run_test.test,
            passed=self._buffered.passed(),
            counts=counts,
            group_doubt=self._group_doubt(),
            holds_group=self._group_fixtures.hold() or self._group.is_users(),
            needs_peers=self._group_fixtures.needs_peers(),
            rank_doubt=self._rank_doubt(item),
            used_rendezvous=self._rendezvous.used_rendezvous(),
            irreversible=self._spent(),
            modules_changed=run_test.ends_module_state and self._modules_changed(),
            changes=self._cleanup.changes,
            setup_show=self._setup_show.take(),
            exit_reason=exit_reason,
            exit_code=exit_code,
            from_plugins={name: sent for each in ends for name, sent in each.items()},
            traffic=self._traffic(),
        )

    def _traffic(self) -> Traffic | None:
        beside = self._is_unclear or self._group.journal.beside
        self._is_unclear = beside and self._cleanup.keeps_threads()
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
            self._phase_stack.phase,
        )
        for attributes in self._config.hook.pytest_ddp_fixture_attributes(ddp=ddp):
            vars(ddp).update(attributes)
        return ddp

    def _run_protocol(self, run_test: RunTest, item: pytest.Item) -> tuple[str | None, int | None]:
        """Run the item; returns reason and code of a ``pytest.exit``, if one was raised."""
        next_item = self._next_item(run_test, item)
        run = run_without_drivers if run_test.driven else item.ihook.pytest_runtest_protocol
        try:
            run(item=item, nextitem=next_item)
        except pytest.exit.Exception as exit_:
            self._tear_down_to(next_item)
            return exit_.msg, exit_.returncode
        return None, None

    def _tear_down_to(self, next_item: pytest.Item | None) -> None:
        """Do the teardown that a ``pytest.exit`` has prevented, and that the other ranks do now."""
        try:
            self._session._setupstate.teardown_exact(next_item)
        except BaseException as error:
            self._link.send(Finished(text_of(error)))

    def _group_doubt(self) -> str | None:
        if self._cleanup.has_more_groups:
            return "there are more process groups than before"
        if self._is_broken_off and self._group.is_unnumbered():
            return "its backend numbers no collectives, so the ranks may have left it out of step"
        return self._group.doubt(held=self._group_fixtures.hold())

    def _spent(self) -> bool:
        if self._place.world.devices is None:
            return self._cleanup.irreversible()
        # Autograd's own thread for each GPU keeps device meshes, where they cannot be cleared. And
        # a message that torch refuses for NCCL, or a coalescing block that an exception leaves,
        # stays between `ncclGroupStart` and `ncclGroupEnd`: later collectives of the thread return
        # at once, and never run, on whichever group (seen with torch 2.11 and NCCL 2.28.9).
        never_runs = self._group.journal.has_refused or torch_state.is_coalescing()
        return self._cleanup.irreversible() or self._cleanup.has_more_groups or never_runs

    def _rank_doubt(self, item: pytest.Item) -> tuple[Leak, ...]:
        doubts = [*self._cleanup.leaks, *self._cleanup.more_stores(), *cleanup.broken_gpu()]
        keeps, own = self._place.world.keeps_group, self._group.is_users()
        if own and self._cleanup.has_other_default_group and not keeps:
            doubts.append(Leak("a default process group of its own"))
        if error := self._phases.broke_fixture:
            doubts.append(Leak(f"a fixture that was broken off by {error}"))
        elif item in self._session._setupstate.stack:
            doubts.append(Leak("fixtures that were not torn down"))
        self._in_doubt |= bool(doubts)
        return tuple(doubts)

    def _next_item(self, run_test: RunTest, item: pytest.Item) -> pytest.Item | None:
        if run_test.next_nodeid is not None and run_test.next_file is not None:
            following: pytest.Item | None
            following = self._collection.chain_to(run_test.next_nodeid, run_test.next_file)
            return following
        if run_test.next_is_known:
            return None
        # Under xdist the next item is unknown: everything wider than this item stays set up.
        # pytest uses the next item only for its chain of collectors, which a collector has as well.
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
            crash_stacks.enable,
        ):
            exiting.attempt(step, problems)
        end = exiting.run_handlers(reported=self._in_doubt)
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
        argument = f"backend={self._place.world.backend!r}"
        pytest.fail(f"{argument}: {missing.reason}", pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._link.check()
        self._is_broken_off |= not report.passed
        if subtest := self._subtests.take(report, self._link.test):
            self._link.send(subtest)
            return
        if self._buffered.take(report):
            return
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        # Sent together with Done, which follows the teardown at once.
        last = report.when == "teardown"
        self._link.send(PhaseReported(self._link.test, data), more=last)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        if when != "runtest":
            return  # the controller reports it, as it collects the same files
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
