"""One run of an explored test on this rank: what is recorded, and which of its threads are held."""

from __future__ import annotations

import contextlib
from typing import Any

from pytest_ddp import fixture
from pytest_ddp.extensions.explore.ranks.accesses import Access, Thing, ThingKind
from pytest_ddp.extensions.explore.ranks.board import Board
from pytest_ddp.extensions.explore.ranks.file_points import FilePoints, watching_files
from pytest_ddp.extensions.explore.ranks.holding import Holder, RankHold
from pytest_ddp.extensions.explore.ranks.operation_points import (
    OperationPoints,
    watching_operations,
)
from pytest_ddp.extensions.explore.ranks.paths import Paths
from pytest_ddp.extensions.explore.ranks.recording import Recording
from pytest_ddp.extensions.explore.ranks.resting import RestWatch
from pytest_ddp.extensions.explore.ranks.store_points import watching_stores
from pytest_ddp.extensions.explore.ranks.thread_points import watching_threads
from pytest_ddp.rank.hooks import fixtures
from pytest_ddp.rank.operations.stream import Operations


class ExploredRun:
    """The recording and the holds of one run, from the test's begin to its end."""

    def __init__(self, operations: Operations, sent: dict[str, Any]) -> None:
        """
        Args:
            operations: the stream of this process.
            sent: what the pytest process wants: the path of the board, the holds of the schedule,
                the test's timeout and the root folder.
        """
        ddp = fixture.current()
        self._undo = contextlib.ExitStack()
        self._begin: str = sent["begin"]
        board = watch = None
        if sent["holds"]:
            board = Board(sent["board"], ddp.rank, ddp.world_size)
        root = sent["root"]
        recording = self._recording = Recording(
            ddp.rank, ddp.world_size, root + "/", board, operations.report
        )
        if board is not None:
            watch = RestWatch(board, recording, operations)
            holds = [hold for hold in map(_hold_of, sent["holds"]) if hold[0] == ddp.rank]
            own = [hold for _, hold in holds]
            holder = Holder(own, board, watch, operations, ddp.phase, sent["timeout"])
            recording.on_point = holder.on_point
            watch.start()
            self._undo.callback(watch.stop)
        files = FilePoints(recording, Paths(_folder(sent["own_tmp_path"]), root))
        self._undo.enter_context(watching_files(files))
        self._undo.enter_context(watching_stores(recording, operations))
        self._undo.enter_context(watching_threads(recording, sent["begin"]))
        self._undo.enter_context(watching_operations(operations, OperationPoints(recording, board)))

    def begin(self) -> None:
        """The test begins, on this thread."""
        self._recording.begin_thread(0)
        self._recording.is_on = True
        self._recording.point(self._begin, site="")

    def user_point(self, name: str) -> None:
        """A point of the user's own."""
        use = Access(Thing(ThingKind.POINT, name), changes=True, verb="passes")
        self._recording.point(f"point:{name}", [use])

    def end(self) -> dict[str, Any]:
        """End the recording; returns what the pytest process gets."""
        self._recording.is_on = False
        self._undo.close()
        return {
            "threads": self._recording.sent(),
            "counts": [[each.number, dict(each.counts)] for each in self._recording.threads],
        }


def _folder(is_own: bool) -> str:
    """The test's folder; where each rank has its own, the folder that contains all of them."""
    path = fixtures.tmp_path_now()
    return path.rpartition("/")[0] if is_own else path


def _hold_of(row: list[Any]) -> tuple[int, RankHold]:
    place, rank, thread, point, number, words, until = row
    progress = None if until is None else {(r, t): count for r, t, count in until}
    return rank, RankHold(place, thread, point, number, words, progress)
