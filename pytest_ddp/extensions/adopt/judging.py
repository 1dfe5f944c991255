"""Judges how the processes of a test ended, unless the test itself checks that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

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
EARLY_ADVICE = "With ddp_adopt_exits = plain it passes, as with multiprocessing itself."


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

    def add(self, process: Watched) -> None:
        self._processes.append(process)

    def of(self, popens: Iterable[object]) -> list[Watched]:
        """The watched processes for these popens, without those that are not served."""
        given = list(popens)
        self._hear()
        return [process for process in self._processes if process.popen in given]

    def hang_text(self, hang: Hang, processes: Iterable[Watched]) -> str:
        """What is known of a hang of these processes, with its code."""
        text = spawn_texts.of_hang(hang, [each for each in processes if each.hang is hang])
        return f"{text}\n{codes.pointer(codes.of_hang(hang.sentence), self._docs_url)}"

    @property
    def explained(self) -> str:
        """The line with the code of processes that have ended badly."""
        return codes.pointer(ENDED_BADLY, self._docs_url)

    def problems(self, due: ExitDeadline) -> str:
        """The problems of processes that have ended and are due; empty if there are none."""
        ended = [process for process in self._processes if process.popen.poll() is not None]
        self._hear()  # after the look at their ends, whose reasons have been sent by then
        ended = [process for process in ended if process.due <= due or process.hang is not None]
        self._processes = [process for process in self._processes if process not in ended]
        text = "\n\n".join(self._words(ended))
        for process in ended:
            process.popen.files.close()
        return text

    def _words(self, ended: list[Watched]) -> Iterator[str]:
        hangs = {id(process.hang): process.hang for process in ended if process.hang is not None}
        for hang in hangs.values():
            yield self.hang_text(hang, ended)
        unnoticed = [process for process in ended if self._is_unnoticed(process)]
        if unnoticed:
            tests = dict.fromkeys(process.nodeid for process in unnoticed)
            yield spawn_texts.of_ends(unnoticed)
            early = all(process.popen.returncode == 0 for process in unnoticed)
            advice = EARLY_ADVICE if early else ADVICE
            yield f"Started by {', '.join(tests)}.\n{advice}\n{self.explained}"

    def _is_unnoticed(self, process: Watched) -> bool:
        popen = process.popen
        if not (self._checks_exits and process.is_judged) or process.hang is not None:
            return False
        if popen.returncode == 0:
            return not popen.has_returned
        return not (popen.is_told or popen.ended_by_test)
