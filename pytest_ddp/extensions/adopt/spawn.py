"""``--ddp-adopt=spawn``: processes that tests start by multiprocessing's ``spawn`` are forked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Sequence
from multiprocessing import context
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from pytest_ddp import DdpWarning
from pytest_ddp.extensions.adopt.elastic import LocalRendezvous
from pytest_ddp.extensions.adopt.ranks.served_messages import AT_ONCE, Inherit, Serve
from pytest_ddp.extensions.adopt.spawn_server import NotServedError, SpawnServer
from pytest_ddp.extensions.adopt.watching import ExitDeadline
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.session.worker_settings import collected_message
from pytest_ddp.settings.options import OPTIONS
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, socket, threading

if TYPE_CHECKING:
    from pytest_ddp.extensions.adopt.popen import ServedPopen
    from pytest_ddp.extensions.adopt.process_supervision import ProcessSupervision

_MEASURED = "COVERAGE_PROCESS_START"


class Spawns:
    """The hooks of the pytest process, and its replacement of ``spawn``."""

    def __init__(self, config: pytest.Config, timeout: float, *, checks_exits: bool) -> None:
        self._config = config
        self._timeout, self._checks_exits = timeout, checks_exits
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._servers: list[SpawnServer] = []
        self._items: list[pytest.Item] = []
        self._nodeid: str | None = None
        """The id of the running test; None between tests."""
        self._due = ExitDeadline.NOW
        """When the exit of a process that is started now is judged."""
        self._has_warned = False
        self._supervision: ProcessSupervision | None = None
        self._original: Any = None
        self._rendezvous = LocalRendezvous()

    # ------------------------------------------------------------------ pytest's hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path) -> None:
        """Start a service that imports torch while this process imports it for the test file."""
        runs = not self._config.option.collectonly
        if runs and not self._servers and _mentions_spawn(module_path):
            self._servers.append(SpawnServer(dict(os.environ)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._items = session.items
        for service in self._servers:
            service.collected(collected_message(self._config, self._items))

    def pytest_sessionstart(self) -> None:
        spawn_process: Any = context.SpawnProcess
        self._original = spawn_process._Popen
        spawn_process._Popen = staticmethod(self._popen)

    def pytest_unconfigure(self) -> None:
        self._rendezvous.remove()
        if self._supervision is not None:
            self._supervision.joins.remove()
        if self._original is not None:
            spawn_process: Any = context.SpawnProcess
            spawn_process._Popen = staticmethod(self._original)
            self._original = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._nodeid = item.nodeid
        self._rendezvous.install()
        try:
            return (yield)
        finally:
            self._nodeid = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        __tracebackhide__ = True
        before = self._due
        # The fixture's own teardown may check how the process ended.
        if before is not ExitDeadline.END:
            self._due = (
                ExitDeadline.TEARDOWN if fixturedef.scope == "function" else ExitDeadline.END
            )
        try:
            return (yield)
        finally:
            self._due = before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        __tracebackhide__ = True
        return (yield from self._judged(item, "setup", ExitDeadline.NOW))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        __tracebackhide__ = True
        return (yield from self._judged(item, "call", ExitDeadline.NOW))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        __tracebackhide__ = True
        due = ExitDeadline.TEARDOWN if nextitem is not None else ExitDeadline.END
        return (yield from self._judged(item, "teardown", due))

    def _judged(
        self, item: pytest.Item, when: str, deadline: ExitDeadline
    ) -> Generator[None, object, object]:
        __tracebackhide__ = True
        try:
            result = yield
        except BaseException as error:
            text = self._problems(item, when, deadline)
            if text and text not in str(error):
                item.add_report_section(when, "processes", text)
            raise
        if text := self._problems(item, when, deadline):
            pytest.fail(text, pytrace=False)
        return result

    def _problems(self, item: pytest.Item, when: str, deadline: ExitDeadline) -> str:
        """The problems of the test; those of earlier tests are noted and do not fail it."""
        if self._supervision is None:
            return ""
        own, late = self._supervision.judge.problems(deadline, item.nodeid)
        if late:
            item.add_report_section(when, "processes of earlier tests", late)
            with contextlib.suppress(DdpWarning):  # raised by a filter; see _warn
                item.warn(DdpWarning(late))
        return own

    # ------------------------------------------------------------------ the replacement of spawn

    def _popen(self, process: Any) -> Any:
        __tracebackhide__ = True
        if self._is_ours():
            try:
                return self._served(process)
            except NotServedError as error:
                self._warn(str(error))
        return self._original(process)

    def _is_ours(self) -> bool:
        """False outside of tests, in forks, and without torch, where a new interpreter is cheap."""
        return self._nodeid is not None and os.getpid() == self._pid and "torch" in sys.modules

    def _served(self, process: Any) -> ServedPopen:
        from pytest_ddp.extensions.adopt.popen import ServedPopen  # noqa: PLC0415
        from pytest_ddp.extensions.adopt.process_supervision import ProcessSupervision  # noqa: PLC0415 - imports much

        __tracebackhide__ = True
        if self._supervision is None:
            docs_url = self._config.stash[OPTIONS].docs_url
            self._supervision = ProcessSupervision(
                self._timeout, docs_url, checks_exits=self._checks_exits
            )
        environment = dict(os.environ)
        if _MEASURED in environment:
            raise NotServedError(f"coverage.py measures what is spawned ({_MEASURED} is set)")
        ours, theirs = socket.socketpair()

        def make(descriptors: Sequence[int], inherited: Sequence[int]) -> int:
            pid = self._make(environment, (theirs.fileno(), *descriptors))
            _hand_over(channel, inherited)
            return pid

        channel = Channel(ours)
        try:
            with theirs:
                popen = ServedPopen(process, make)
        except BaseException:
            channel.close()
            raise
        self._supervision.add(popen, channel, self._servers, process, self._nodeid or "", self._due)
        channel.close()
        return popen

    def _make(self, environment: dict[str, str], descriptors: Sequence[int]) -> int:
        with self._lock, contextlib.ExitStack() as opened:
            channel, *rest = descriptors
            streams = [opened.enter_context(_stream(number)) for number in range(3)]
            request = Serve(environment, processes.umask())
            everything = (channel, *(stream.fileno() for stream in streams), *rest)
            return self._service(environment).make(request, everything)

    def _service(self, environment: dict[str, str]) -> SpawnServer:
        for service in self._servers:
            if service.fits(environment):
                return service
        service = SpawnServer(environment)
        service.collected(collected_message(self._config, self._items))
        self._servers.append(service)
        return service

    def _warn(self, why: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        text = f"--ddp-adopt=spawn: multiprocessing starts processes itself, since {why}"
        # If a filter turns the warning into an error, the test must not fail: it is not at fault.
        with contextlib.suppress(DdpWarning):
            self._config.issue_config_time_warning(DdpWarning(text), stacklevel=2)


def _mentions_spawn(path: Path) -> bool:
    """A guess; a wrong one costs an import of torch, or makes the first process wait for it."""
    with contextlib.suppress(OSError):
        text = path.read_bytes() if path.suffix == ".py" else b""
        if b"multiprocessing" in text and (b"spawn" in text or b"start_processes" in text):
            return True
        return b"torch.distributed.launcher" in text or b"ddp_spawn" in text
    return False


def _hand_over(channel: Channel, inherited: Sequence[int]) -> None:
    """Send the descriptors that the process's data refers to; the process waits for them."""
    parts = [inherited[start : start + AT_ONCE] for start in range(0, len(inherited), AT_ONCE)]
    for number, part in enumerate(parts or [()], 1):
        with contextlib.suppress(OSError):  # it is already killed, and its sentinel shows that
            channel.send(Inherit(tuple(part), number >= len(parts)), part)


def _stream(number: int) -> IO[bytes]:
    """A standard stream as it is now; ``/dev/null`` if it is closed."""
    try:
        os.fstat(number)
    except OSError:
        return open(os.devnull, "r+b")
    return open(number, "rb", closefd=False)
