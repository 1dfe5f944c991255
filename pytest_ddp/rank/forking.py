"""The host's loop: start ranks, reap them, and leave no process of theirs alive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import KillRank, RankExited, RankStarted, StartRank
from pytest_ddp.rank.cleanup import leftovers
from pytest_ddp.rank.cleanup.leftovers import TRACKER
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, select, signal, time

StartProcess = Callable[[StartRank, list[int]], int]
"""Starts a rank with the descriptors of its channel and its files; returns its pid. In a forked
child it never returns."""

_LAST_WAIT = 10.0
"""Seconds to wait at the very end for killed processes to disappear. On a machine that is busy they
took more than one."""
_TRACKER_WAIT = 1.0
"""Seconds to wait for trackers, which are not killed."""
_A_MOMENT = 0.05
"""Seconds after which children are listed again: a killed child may have left new ones to us."""


# Overview
#
# The nursery is the parent of all rank processes of one controller. It also adopts their orphans,
# by `adopt_orphans`. A rank may be killed at any moment, by its test, by the kernel or by the
# controller, so its state is a matter of processes and never of messages from it.
#
#   state    of a rank        in the fields               who moves it there         next state
#   -------  ---------------  --------------------------  -------------------------  -------------
#   ordered  not started      none                        the controller:            running
#                                                         `StartRank`
#   running  process exists   pid in `_ranks` and         `_obey`, which calls       ended
#                             `_watches`                  `_start` and sends
#                                                         `RankStarted`
#   ended    process has      as running; the pidfd is    the process itself, or     reaped
#            exited           readable                    `kill_group` at `KillRank`
#   reaped   pid is free      none                        `_reap`, which sends       none
#                                                         `RankExited`
#
# In `_reap` the process group is killed before the leader is reaped: as long as the leader is a
# zombie, the kernel cannot give its pid to another process. Then its remaining children are killed,
# which `processes.children` finds by their session, and `RankExited` is sent only after that: for
# the controller, a rank that has exited has left no process behind.
#
# Once the channel has ended, `serve` calls `_end_all`, for ranks in any state.


class RankHost:
    """Parent of all ranks of one controller, and of processes that they leave behind."""

    def __init__(self, channel: Channel, start: StartProcess) -> None:
        self._channel = channel
        self._start = start
        self._ranks: dict[int, int] = {}
        """Serial number by pid."""
        self._watches: dict[int, int] = {}
        """Pid by pidfd, which becomes readable when the process has ended."""
        processes.adopt_orphans()

    def serve(self) -> None:
        """Start and reap ranks until the channel ends, then end all remaining processes."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        with contextlib.suppress(OSError):
            while self._serve_once(poll):
                pass
        self._end_all()

    def _serve_once(self, poll: select.poll) -> bool:
        # A message that was read together with an earlier one does not wake poll.
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
                raise AssertionError(f"{message} is not for a host that runs")
        return True

    def _reap(self, watch: int) -> None:
        pid = self._watches.pop(watch)
        os.close(watch)
        # Before the leader is reaped: until then the kernel gives its pid to no other process.
        processes.kill_group(pid)
        _, status = os.waitpid(pid, 0)
        for orphan in processes.children():
            if orphan.session == pid:
                kill(orphan.pid)
        self._channel.send(RankExited(self._ranks.pop(pid), os.waitstatus_to_exitcode(status)))
        self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Reap adopted children that have ended, but not ranks, which :meth:`_reap` reaps."""
        with contextlib.suppress(ChildProcessError):
            # Until no child has ended, or the next one is a rank.
            while (
                info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if info.si_pid in self._ranks:
                    return
                os.waitpid(info.si_pid, 0)

    def _end_all(self) -> None:
        for pid in self._ranks:
            processes.kill_group(pid)
        begin = time.monotonic()
        only_managers = 0
        # A killed process leaves its children to us, even daemons with a session of their own: go
        # on until none is left but torch's, which end after this process. None may be listed for a
        # moment, in which a killed process leaves its children to us.
        while processes.has_children() and only_managers < 2:
            left = self._children_left()
            awaited = [child for child in left if not leftovers.is_manager(child.command)]
            only_managers = only_managers + 1 if left and not awaited else 0
            # A tracker ends when its work is done, after this process if need be.
            to_kill = [child for child in awaited if TRACKER not in child.command]
            only_trackers = awaited and not to_kill
            if time.monotonic() > begin + (_TRACKER_WAIT if only_trackers else _LAST_WAIT):
                break
            for child in to_kill:
                kill(child.pid)
            processes.wait_for_end([child.pid for child in awaited], _A_MOMENT)

    def _children_left(self) -> list[processes.Process]:
        """Our living children, after reaping those that have ended."""
        with contextlib.suppress(ChildProcessError):
            # waitpid returns 0 when no further child has ended.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return processes.children()


def kill(pid: int) -> None:
    """Send SIGKILL to a child of ours, which no other process can have reaped."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
