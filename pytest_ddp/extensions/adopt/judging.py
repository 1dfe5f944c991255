"""Judges how the processes of a test ended, unless the test itself checks that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pytest_ddp.extensions.adopt import spawn_texts
from pytest_ddp.extensions.adopt.codes import ENDED_BADLY
from pytest_ddp.extensions.adopt.exit_deadline import ExitDeadline
from pytest_ddp.extensions.adopt.watching import Watched
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.verdict import codes

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
    """On those of this test, and of fixtures."""
    late: str
    """On those that earlier tests have left running."""


class Judge:
    """Keeps served processes until they have ended and are judged."""

    def __init__(
        self, hear: Callable[[], object], *, checks_exits: bool, docs_url: str = ""
    ) -> None:
        """
        Args:
            hear: notes hangs that have been proved, in the processes that were ended for them.
            checks_exits: whether a test fails that did not notice how a process ended.
            docs_url: of the page with the codes; empty for the command that shows them.
        """
        self._hear = hear
        self._checks_exits, self._docs_url = checks_exits, docs_url
        self._processes: list[Watched] = []

    def add(self, watched: Watched) -> None:
        self._processes.append(watched)

    def of(self, popens: Iterable[object]) -> list[Watched]:
        """The watched processes for these popens, without those that are not served."""
        given = list(popens)
        self._hear()
        return [process for process in self._processes if process.popen in given]

    def hang_text(self, hang: Hang, watched: Iterable[Watched]) -> str:
        """What is known of a hang of these processes, with its code."""
        text = spawn_texts.of_hang(hang, [each for each in watched if each.hang is hang])
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
        self._hear()  # after the look at their ends, whose reasons have been sent by then
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
        """Whether it is of an earlier test, and this one has not waited for it.

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
            yield spawn_texts.of_ends(unnoticed)
            early = all(process.popen.returncode == 0 for process in unnoticed)
            advice = EARLY_ADVICE if early else ADVICE
            yield f"Started by {_tests(unnoticed)}.\n{advice}\n{self.explained}"

    def _is_unnoticed(self, watched: Watched) -> bool:
        popen = watched.popen
        if not (self._checks_exits and watched.is_judged) or watched.hang is not None:
            return False
        if popen.returncode == 0:
            return not popen.has_returned
        return not (popen.is_told or popen.ended_by_test)


def _tests(watched: Iterable[Watched]) -> str:
    return ", ".join(dict.fromkeys(process.nodeid for process in watched))
