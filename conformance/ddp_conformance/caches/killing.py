"""MEM-07: a session of launched ranks whose builder is killed, and the session that comes next."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from ddp_conformance.caches import judge
from ddp_conformance.caches.history import NewFiles
from ddp_conformance.caches.opening import (
    Source,
    close,
    content_of,
    first_look_in_lockstep,
)
from ddp_conformance.caches.subjects import Cache
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import History, Record, Refused, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, judge_each, on_all, record
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.launched.endings import came_through, in_order, words_of
from ddp_conformance.launched.history import Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Work
from ddp_conformance.launched.process.saving import SEGMENTS, follow_shared_memory
from ddp_conformance.launched.rank_devices import join, leave
from ddp_conformance.launched.start.launch import Limits, launch
from ddp_conformance.lockstep.same_calls import demand_same_calls

LIMITS = Limits(timeout=30.0, patience=2.0)


def find_bad_rebuild(subject: Cache, ranks: Ranks, built: Run) -> tuple[Violation, ...]:
    """The violations after a kill, compared with ``built`` and with another session without a kill.

    Undecided for a factory that no other process can import, and where a session does not come
    to its end although no rank of it was killed.
    """
    try:
        Named.of(subject.make)
    except ValueError as error:
        raise UndecidedError(f"{subject.name}: {error}") from None
    plain = _run(subject, ranks, 0)
    undisturbed = (built.history, plain.history)
    for number in kills(plain.history):
        run = _run(subject, ranks, number)
        found = judge_each([run], lambda run: judge.judge_after_kill(run.history, undisturbed))
        if found:
            how = f"after a kill at new file {number}, "
            return tuple(replace(one, what=how + one.what) for one in found)
        # If a rank raises, the others wait for it, and fail to open the cache as well.
        if not any(isinstance(seen, Refused) for seen in run.history):
            demand_same_calls(subject, [run], "WRT-04")
    return ()


def kills(history: History) -> Sequence[int]:
    """The numbers of the new files at which to kill: the first two and the last two."""
    last = max((seen.count for seen in history if isinstance(seen, NewFiles)), default=0)
    return sorted({1, 2, last - 1, last} & set(range(1, last + 1)))


def _run(subject: Cache, ranks: Ranks, number: int) -> Run:
    cases = cases_of(ranks, (2 * ranks.world_size + 3,))
    (run,) = record(subject, ranks, cases, lambda s, case: two_sessions(s, case, ranks, number))
    if not _opens_next(run.history):
        ends = "; ".join(words_of(end) for end in in_order(run.history) if not end.returned)
        raise UndecidedError(
            f"{subject.name} is not opened by launched ranks, of which none was killed: {ends}"
        )
    return run


def _opens_next(history: History) -> bool:
    """Whether there is a next session: not after one that failed without a kill."""
    killed = any(isinstance(seen, NewFiles) and seen.killed for seen in history)
    return killed or came_through(history)


def two_sessions(subject: Cache, case: Case, ranks: Ranks, number: int) -> Iterator[Record]:
    """Open the cache on launched ranks, killed at new file ``number`` unless it is 0; then here."""
    first = on_all(ranks, lambda: list(launched(subject, case, number)))
    yield from first
    if not ranks.gather(_opens_next(first))[0]:
        return
    found, problem = first_look_in_lockstep(subject, case, Source(case, readers=1), ranks)
    yield from found
    if problem is not None:
        yield Refused(case.rank, type(problem).__name__)


def launched(subject: Cache, case: Case, number: int) -> Iterator[Record]:
    """Rank 0 launches the first session for all."""
    if case.rank == 0:
        argv = (str(case.size), str(case.directory), str(number))
        work = Work(Named.of(open_until_killed), Named.of(subject.make), argv)
        elsewhere = case.directory.with_name(f"{case.directory.name}-launched")
        elsewhere.mkdir()
        yield from launch(work, case.world_size, elsewhere, LIMITS)


def open_until_killed(order: Order, journal: Journal) -> None:
    """Open the cache; its builder is killed when the new file of the given number has bytes.

    The files are counted when a C function returns to Python code of the builder: only C writes.
    """
    make, (size, directory, given) = order.work.entry.load(), order.work.argv
    case, number = Case(int(size), order.rank, order.world_size, Path(directory)), int(given)
    private = Path(order.files(order.rank))
    follow_shared_memory(private / SEGMENTS)
    files = FileCount(directory)
    builders: list[int] = []

    def look(frame: object, event: str, argument: object) -> None:
        if event == "c_return" and files.look() >= number > 0:
            # The builder may be a fork of the rank, for which the rank's journal writes nothing.
            Journal(private / "journal").add(NewFiles(order.rank, files.count, killed=True))
            os.killpg(0, signal.SIGKILL)  # the rank with all that it has started

    def produce() -> dict[str, Tensor]:
        content = content_of(case.size)
        builders.append(threading.get_ident())
        threading.setprofile(look)
        sys.setprofile(look)
        return content

    join(order.device)
    cache = make(case, produce)
    if threading.get_ident() in builders and sys.getprofile() is not look:
        raise RuntimeError("sys.setprofile, by which new files are seen, was used by the builder")
    threading.setprofile(None)
    sys.setprofile(None)
    journal.add(NewFiles(order.rank, files.look(), killed=False))
    dist.barrier()  # no rank closes before all have it
    close(cache)
    leave()
    journal.add(Happened(order.rank, "returned"))


class FileCount:
    """Counts the files below a folder that are new and not empty.

    By inode, so that a renamed file counts once. A new file may get the inode of a removed one.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known = {file.inode() for file in _files(folder)}
        self.count = 0

    def look(self) -> int:
        """Return the number of new files so far."""
        files = {file.inode(): file for file in _files(self._folder)}
        new = {inode for inode in files.keys() - self._known if _has_bytes(files[inode])}
        self._known = (self._known & files.keys()) | new
        self.count += len(new)
        return self.count


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry


def _has_bytes(file: os.DirEntry[str]) -> bool:
    try:
        return file.stat(follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False
