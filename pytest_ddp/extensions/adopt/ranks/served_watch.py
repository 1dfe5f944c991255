"""The instruments of a rank in a served process: its phases, process groups and probe thread."""

from __future__ import annotations

import contextlib
import sys
from multiprocessing import synchronize
from types import FrameType
from typing import Any

import torch.distributed as dist

from pytest_ddp.extensions.adopt.ranks.served_messages import RETURNED, Joined, ProcessPlace
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import World
from pytest_ddp.protocol.messages import FromRank
from pytest_ddp.protocol.rank_status import Probe
from pytest_ddp.protocol.status_page import StatusPage
from pytest_ddp.rank.groups.default_group import DefaultGroup
from pytest_ddp.rank.groups.journal import CallJournal
from pytest_ddp.rank.groups.side_channel import SideChannel
from pytest_ddp.rank.operations import kernels
from pytest_ddp.rank.operations.process import operations_of_process
from pytest_ddp.rank.status import landmarks
from pytest_ddp.rank.status.phase_stack import PhaseStack
from pytest_ddp.rank.status.status_reporter import StatusReporter
from pytest_ddp.system.frames import current_frames
from pytest_ddp.system.stdlib import os, threading

_NO_GROUP = World("gloo", 1, None, init=False)
"""The plugin creates no group here: the process creates its own."""


class ServedWatch:
    """Records what the process does from now on; answers probes once it has a process group."""

    def __init__(self, channel: Channel, page: str) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._phase_stack = PhaseStack(StatusPage(page))
        operations = operations_of_process()
        operations.on_new_group.append(self._greet)
        group = DefaultGroup(CallJournal(operations), _NO_GROUP, 0)
        self._status_reporter = StatusReporter(group, self._phase_stack, SideChannel())
        landmarks.install(self._phase_stack)
        kernels.watch_functional(operations)
        # Messages of a fork are not about this process.
        os.register_at_fork(after_in_child=channel.close)
        self._phase_stack.begin("target")

    def end(self) -> None:
        """Note that the target has returned and all exit functions have run."""
        self._phase_stack.begin(RETURNED)

    def _greet(self, _: dist.ProcessGroup) -> None:
        # Only now, because a spawned process without a group has only one thread.
        if self._thread is None:
            name = "pytest-ddp link"
            self._thread = threading.Thread(target=self._answer, name=name, daemon=True)
            self._thread.start()
        self._send(Joined())

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while (received := self._channel.receive()) is not None:
                question, _ = received
                assert isinstance(question, Probe), question
                # The main thread changes what is read here; an answer that fails proves nothing.
                with contextlib.suppress(Exception):
                    status = self._status_reporter.stand(question)
                    self._send(_place(), status)

    def _send(self, *messages: FromRank | Joined | ProcessPlace) -> None:
        with contextlib.suppress(OSError), self._lock:
            for message in messages:
                self._channel.send(message)


def _place() -> ProcessPlace:
    released = _is_released(current_frames().get(threading.main_thread().ident or 0))
    if not dist.is_initialized():
        return ProcessPlace(-1, 0, released)
    return ProcessPlace(dist.get_rank(), dist.get_world_size(), released)


def _is_released(frame: FrameType | None) -> bool:
    """Whether torch's elastic has called its function, and waits until all of them return."""
    elastic: Any = sys.modules.get("torch.distributed.elastic.multiprocessing.api")
    while frame is not None and frame.f_code.co_filename == synchronize.__file__:
        frame = frame.f_back
    return elastic is not None and frame is not None and frame.f_code is elastic._wrap.__code__
