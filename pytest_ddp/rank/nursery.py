"""The host's loop: start ranks, reap them, and leave nothing of them alive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from pytest_ddp.rank.care import sharedmemory
from pytest_ddp.rank.care.remains import TRACKER
from pytest_ddp.system import processes
from pytest_ddp.system.own import os, select, signal, time
from pytest_ddp.wire.channel import Channel
from pytest_ddp.wire.hosting import (
    KillRank,
    RankExited,
    RankStarted,
    StartRank,
)

Start = Callable[[StartRank, list[int]], int]
"""Starts a rank on the descriptors of its channel and its files; the pid. In a forked
child it never returns."""

_LAST_WAIT = 1.0
"""Seconds that killed processes are given to disappear, at the very end."""
_A_MOMENT = 0.05


class Nursery:
    """Parent of all ranks of one controller, and of whatever they leave behind."""

    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel = channel
        self._start = start
        self._ranks: dict[int, int] = {}
        """Serial number by pid."""
        self._watches: dict[int, int] = {}
        """Pid by pidfd."""
        self._dead: set[int] = set()
        """Pids of ranks, and of what they left behind, that have been reaped."""
        processes.adopt_orphans()

    def serve(self) -> None:
        """Work until the controller is gone, then end every process that is left."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        with contextlib.suppress(OSError):
            while self._serve_once(poll):
                """Until the channel ends."""
        self._end_all()

    def _serve_once(self, poll: select.poll) -> bool:
        # What came together with an earlier message wakes no poll any more.
        while self._channel.has_message:
            self._obey(poll)
        for descriptor, _ in poll.poll():
            if descriptor in self._watches:
                poll.unregister(descriptor)
                self._reap(descriptor)
            elif not self._obey(poll):
                return False
        return True

    def _obey(self, poll: select.poll) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        match received:
            case StartRank() as order, descriptors:
                pid = self._start(order, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                self._ranks[pid] = order.serial
                watch = os.pidfd_open(pid)
                self._watches[watch] = pid
                poll.register(watch, select.POLLIN)
                self._channel.send(RankStarted(order.serial, pid))
            case KillRank() as order, _:
                for pid, serial in self._ranks.items():
                    if serial == order.serial:
                        processes.kill_group(pid)
            case message, _:
                raise AssertionError(f"{message} is not for a nursery")
        return True

    def _reap(self, watch: int) -> None:
        pid = self._watches.pop(watch)
        os.close(watch)
        # Before the leader is reaped: until then nobody else can get its number.
        processes.kill_group(pid)
        _, status = os.waitpid(pid, 0)
        self._dead.add(pid)
        for orphan in processes.children():
            if orphan.session == pid:
                kill(orphan.pid)
        self._channel.send(RankExited(self._ranks.pop(pid), os.waitstatus_to_exitcode(status)))
        self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Collect adopted children that have ended, ranks excepted."""
        with contextlib.suppress(ChildProcessError):
            while (
                info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if info.si_pid in self._ranks:
                    return
                self._dead.add(info.si_pid)
                os.waitpid(info.si_pid, 0)

    def _end_all(self) -> None:
        for pid in self._ranks:
            processes.kill_group(pid)
        deadline = time.monotonic() + _LAST_WAIT
        folders: set[Path] = set()
        # Killing a process hands its children to us, daemons with a session of their own
        # included: go on until there is nobody.
        while processes.has_children() and time.monotonic() < deadline:
            left = self._children_left()
            for child in left:
                if sharedmemory.is_manager(child.command):
                    folders |= sharedmemory.manager_folders(child.pid)
                # A tracker ends when its work is done, if need be after us.
                if TRACKER not in child.command:
                    kill(child.pid)
            _wait_for_one(left)
        sharedmemory.remove(folders, self._dead)

    def _children_left(self) -> list[processes.Process]:
        """Our living children; those that have ended are reaped on the way."""
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._dead.add(pid)
        return processes.children()


def _wait_for_one(children: list[processes.Process]) -> None:
    """Wait until one of them ends, but not for long."""
    watches = [os.pidfd_open(child.pid) for child in children]
    select.select(watches, [], [], _A_MOMENT)
    for watch in watches:
        os.close(watch)


def kill(pid: int) -> None:
    """SIGKILL for a child of ours, which cannot have been reaped by anybody else."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
