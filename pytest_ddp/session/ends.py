"""How the controller ends ranks: it lets them tear down first, or stops them."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddp.launch.launcher import HostDiedError, Launcher, RankReaped
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.protocol.host_messages import World
from pytest_ddp.protocol.messages import Aside, Exchange, Finished, FromRank, Save, Saved
from pytest_ddp.session.exchanges import Exchanges
from pytest_ddp.system.stdlib import signal, time
from pytest_ddp.verdict.lost_ranks import frame_lines
from pytest_ddp.verdict.rank_failure import exit_text

_STACK_LIMIT = 0.5
"""Seconds that a rank gets to write its stacks; it needs about a millisecond."""
_KILL_LIMIT = 8.0
"""Seconds until a killed rank is gone; the loss of a whole machine is noticed after 5 to 6."""
_SAVE_LIMIT = 2.0
"""Seconds that a rank gets to save its coverage; it needs some 10 ms."""


def finish(
    launcher: Launcher,
    processes: list[RankProcess],
    seconds: float,
    *,
    explain: bool = True,
) -> Iterator[tuple[int, Aside]]:
    """Let idle ranks tear down their wide fixtures and exit.

    Args:
        launcher: the launcher of these ranks.
        processes: the ranks.
        seconds: how long to wait for them.
        explain: yield an explanation for each rank that did not report its end.

    Yields:
        each rank with a message of it, or with the explanation.
    """
    # First take the ends that are known by now: they belong to the time between two tests.
    launcher.poll(0)
    living = [process for process in processes if not process.gone]
    for process in processes:
        if explain and process.test and process not in living:
            yield process.rank, explain_idle_death(process)
    for process in living:
        process.files.begin()
    unfinished = [process for process in living if process.ready and explain]
    partings = _Partings(living)
    for process, message in launcher.finish(living, seconds, partings.take):
        if isinstance(message, Aside):
            yield process.rank, message
        if isinstance(message, Finished) and process in unfinished:
            unfinished.remove(process)
    stacks = ask_for_stacks(launcher, [process for process in unfinished if not process.gone])
    for process in unfinished:
        text = stacks.get(process) or process.files.stacks()
        yield process.rank, Finished(_unfinished(process, seconds, text))


class _Partings:
    """Exchanges of the ``ddp`` fixture between ranks in their last teardown, for each pool."""

    def __init__(self, processes: list[RankProcess]) -> None:
        self._exchanges: dict[World, Exchanges] = {}
        ordered = sorted(processes, key=lambda process: process.rank)
        for world in {process.world for process in processes}:
            mates = [process for process in ordered if process.world == world]
            self._exchanges[world] = Exchanges(mates)
            for rank in {*range(world.world_size)} - {mate.rank for mate in mates}:
                self._exchanges[world].lack(rank)

    def take(self, process: RankProcess, message: FromRank | RankReaped) -> None:
        if (exchanges := self._exchanges.get(process.world)) is None:
            return
        if isinstance(message, Exchange):
            exchanges.arrive(process, message)
        elif isinstance(message, Finished | RankReaped):
            exchanges.leave(process, "ended its teardown")


def _unfinished(process: RankProcess, seconds: float, stacks: str) -> str:
    if process.returncode is None:
        end = f"was killed: its last teardown took longer than {seconds:.0f} s"
    else:
        end = f"{_end_of(process)} before the end of its last teardown"
    return _with_stack(end, stacks)


def _with_stack(end: str, stacks: str) -> str:
    mains = [main for dump in stack_dumps.parse_stacks(stacks) if (main := dump.main()) is not None]
    if not mains:
        return f"The rank {end}.\n"
    return "\n".join([f"The rank {end}. Most recent call first:", *frame_lines(mains[-1]), ""])


def explain_idle_death(process: RankProcess) -> Finished:
    """The explanation for a rank that ended its last test and died later."""
    end = f"{_end_of(process)} between two tests, after {process.test}"
    return Finished(_with_stack(end, process.files.stacks()))


def _end_of(process: RankProcess) -> str:
    """How the process of a rank ended, as a predicate."""
    assert process.returncode is not None
    return process.condemned or exit_text(process.returncode)


def ask_for_stacks(launcher: Launcher, processes: list[RankProcess]) -> dict[RankProcess, str]:
    """The stacks of ranks that will be killed, as far as they can still write them."""
    if launcher.measures:
        _have_saved(launcher, processes)
    for process in processes:
        process.signal(signal.SIGUSR1)
    stacks = dict.fromkeys(processes, "")
    deadline = time.monotonic() + _STACK_LIMIT
    while processes and time.monotonic() < deadline:
        before = stacks
        launcher.poll(0.02)
        stacks = {process: process.files.stacks() for process in processes}
        # It is written in pieces: two equal reads, as far as the frames that run the test.
        if before == stacks and all(map(stack_dumps.is_whole, stacks.values())):
            break
    return stacks


def _have_saved(launcher: Launcher, processes: list[RankProcess]) -> None:
    """Have ranks save their coverage; a rank with C code that holds the GIL cannot."""
    for process in processes:
        process.send(Save())
    waiting = {process for process in processes if not process.gone}
    deadline = time.monotonic() + _SAVE_LIMIT
    while waiting and (left := deadline - time.monotonic()) > 0:
        events = launcher.poll(left)
        waiting -= {process for process, what in events if isinstance(what, Saved | RankReaped)}


def wait_for_ends(launcher: Launcher, processes: list[RankProcess]) -> None:
    """Wait until killed ranks are gone.

    Raises:
        HostDiedError: a rank is still there after the limit.
    """
    deadline = time.monotonic() + _KILL_LIMIT
    while not all(process.gone for process in processes):
        if (left := deadline - time.monotonic()) <= 0:
            raise HostDiedError("the host did not end a rank that it was ordered to kill")
        launcher.poll(left)
