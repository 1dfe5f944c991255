"""Judges how the processes of a test ended, unless the test itself checks that.

Its texts are on processes that could never end, and on those that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_ddp.extensions.adopt.codes import ENDED_BADLY
from pytest_ddp.extensions.adopt.watching import ExitDeadline, Watched
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Hang, RankLine
from pytest_ddp.protocol.rank_status import CodeLine, phase_text
from pytest_ddp.verdict import codes, diagnosis
from pytest_ddp.verdict.diagnosis import RankDiagnosis
from pytest_ddp.verdict.lost_ranks import frame_lines
from pytest_ddp.verdict.rank_failure import exit_text
from pytest_ddp.verdict.text import rows_of

ADVICE = (
    "A test that reads the exitcode of such a process decides on it alone. To skip this check:\n"
    "ddp_adopt_exits = plain."
)
_KILLED = 10.0
"""Seconds, at most, until a process that is being killed has ended."""
EARLY_ADVICE = "With ddp_adopt_exits = plain it passes, as with multiprocessing itself."


class Problems(NamedTuple):
    """Texts on processes that have ended badly; empty if there are none."""

    own: str
    """The text on processes of this test, and of fixtures."""
    late: str
    """The text on processes that earlier tests have left running."""


class Judge:
    """Keeps served processes until they have ended and are judged."""

    def __init__(
        self, read_reports: Callable[[], object], *, checks_exits: bool, docs_url: str = ""
    ) -> None:
        """
        Args:
            read_reports: notes proved hangs, in the processes that were ended for them.
            checks_exits: whether a test fails that did not notice how a process ended.
            docs_url: the address of the page with the codes; empty for the command that shows them.
        """
        self._read_reports = read_reports
        self._checks_exits, self._docs_url = checks_exits, docs_url
        self._processes: list[Watched] = []

    def add(self, watched: Watched) -> None:
        self._processes.append(watched)

    def of(self, popens: Iterable[object]) -> list[Watched]:
        """The watched processes for these popens, without those that are not served."""
        given = list(popens)
        self._read_reports()
        return [process for process in self._processes if process.popen in given]

    def hang_text(self, hang: Hang, watched: Iterable[Watched]) -> str:
        """What is known of a hang of these processes, with its code."""
        text = hang_proof(hang, [each for each in watched if each.hang is hang])
        return f"{text}\n{codes.pointer(codes.OF_HANG[hang.kind], self._docs_url)}"

    @property
    def explained(self) -> str:
        """The line with the code of processes that have ended badly."""
        return codes.pointer(ENDED_BADLY, self._docs_url)

    def problems(self, deadline: ExitDeadline, nodeid: str) -> Problems:
        """The problems of processes that have ended and are due.

        Args:
            deadline: the phase that ends now.
            nodeid: its test.
        """
        ended = [process for process in self._processes if process.popen.poll() is not None]
        self._read_reports()  # after the look at their ends, whose reasons have been sent by then
        # The processes of a hang are killed one after another, and judged together.
        hangs = [process.hang for process in ended if process.hang is not None]
        ended += [
            process
            for process in self._processes
            if process not in ended and process.hang in hangs and process.popen.is_reaped(_KILLED)
        ]
        late = [process for process in ended if self._is_late(process, nodeid)]
        own = [
            process
            for process in ended
            if process not in late and (process.due <= deadline or process.hang is not None)
        ]
        self._processes = [each for each in self._processes if each not in (*own, *late)]
        problems = Problems("\n\n".join(self._words(own)), self._late_words(late))
        for process in (*own, *late):
            process.popen.files.close()
        return problems

    @staticmethod
    def _is_late(watched: Watched, nodeid: str) -> bool:
        """Whether a process is of an earlier test, and this one has not waited for it.

        A wide fixture is of no single test.
        """
        is_of_a_test = watched.due is not ExitDeadline.END
        return is_of_a_test and watched.nodeid != nodeid and not watched.popen.was_joined

    def _late_words(self, late: list[Watched]) -> str:
        text = "\n\n".join(self._words(late))
        intro = (
            f"{_tests(late)} left processes running, which have failed during this test.\n"
            f"It keeps its verdict, as it has not joined them:"
        )
        return text and f"{intro}\n\n{text}"

    def _words(self, ended: list[Watched]) -> Iterator[str]:
        hangs = {id(process.hang): process.hang for process in ended if process.hang is not None}
        for hang in hangs.values():
            yield self.hang_text(hang, ended)
        unnoticed = [process for process in ended if self._is_unnoticed(process)]
        if unnoticed:
            yield ends_text(unnoticed)
            early = all(process.popen.returncode == 0 for process in unnoticed)
            advice = EARLY_ADVICE if early else ADVICE
            yield f"Started by {_tests(unnoticed)}.\n{advice}\n{self.explained}"

    def _is_unnoticed(self, watched: Watched) -> bool:
        popen = watched.popen
        if not (self._checks_exits and watched.is_judged) or watched.hang is not None:
            return False
        if popen.returncode == 0:
            return not popen.has_returned
        return not (popen.exit_code_was_read or popen.ended_by_test)


def _tests(watched: Iterable[Watched]) -> str:
    return ", ".join(dict.fromkeys(process.nodeid for process in watched))


# ------------------------------------------------------------------ texts

EARLY = "exited with code 0 before its target had returned"
"""The end by ``os._exit(0)``, for example."""


def hang_proof(hang: Hang, watched: Sequence[Watched]) -> str:
    """The proof, where each rank was, and its stack."""
    ranks = [_diagnosis(row) for row in hang.table if row.rank >= 0]
    errors = {p.rank: p.status.handled if p.status else None for p in watched}
    lines = [diagnosis.verdict_prefix(errors) + hang.sentence, *rows_of(ranks)]
    for process in sorted(watched, key=lambda process: process.rank):
        lines += _stack(process)
    if in_handlers := diagnosis.note(errors):
        lines += ["", in_handlers]
    return "\n".join(lines)


def ends_text(watched: Iterable[Watched]) -> str:
    """How these processes ended, and where; a paragraph each."""
    return "\n\n".join("\n".join([_end(process), *_stack(process)]) for process in watched)


def _end(watched: Watched) -> str:
    popen = watched.popen
    mark = popen.files.mark()
    if popen.returncode == 0 and not popen.has_returned:
        words = EARLY
    elif popen.returncode is None:
        words = "is still running"
    else:
        words = exit_text(popen.returncode)
    own = stack_dumps.user_line(stack_dumps.main_stack(popen.files.stacks()))
    place = f", at {own}" if own is not None else _noted(mark.seen, mark.site)
    raised = f": {watched.raised}" if watched.raised else ""
    return f"{_name(watched)} {words}{_phase(mark.phase)}{place}{raised}"


def _noted(seen: CodeLine | None, site: CodeLine | None) -> str:
    """The last place of a process by its status page, which is all that is left after SIGKILL."""
    noted = stack_dumps.last_place(seen, site)
    return "" if noted is None else f", {noted[0]} {noted[1]}"


def _phase(phase: tuple[str, ...]) -> str:
    inner = phase_text(phase[1:])
    return f" in {inner}" if inner else ""


def _name(watched: Watched) -> str:
    rank = f"rank {watched.rank}, " if watched.rank >= 0 else ""
    return f"{watched.label} ({rank}pid {watched.popen.pid})"


def _stack(watched: Watched) -> Iterator[str]:
    dumps = stack_dumps.parse_stacks(watched.popen.files.stacks())
    mains = [main for dump in dumps if (main := dump.main()) is not None]
    if mains:
        yield ""
        yield f"{_name(watched)}, most recent call first:"
        yield from frame_lines(mains[-1])


def _diagnosis(row: RankLine) -> RankDiagnosis:
    seen = row.state, row.phase[1:], row.collective, row.group, row.number, row.place
    return RankDiagnosis(row.rank, *seen, "", None, "", "", ())
