"""What a dead rank has left behind, in words."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from pytest_ddp.outcome import stack_dumps
from pytest_ddp.protocol import status_page
from pytest_ddp.protocol.rank_status import CodeLine, phase_text

SECONDARY = ("closed by peer", "Connection reset", "Broken pipe", "PeerFailureError")
"""What the others say when a rank has died."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended, and what it was doing."""

    rank: int
    returncode: int
    """The exit code; minus the signal's number for a signal."""
    finished: bool
    """Whether the program came to its end; an exit code of 0 alone does not show that."""
    stopped: bool = False
    """Whether the process was still running, and was ended because another rank had died."""
    phase: str = ""
    """The phase, for example ``DDP construction``; empty outside of phases of torch."""
    place: str = ""
    """``file:line in function`` of the user's code."""
    operator: str = ""
    """The native operator that the rank was inside."""
    error: str = ""
    """The exception, on one line."""

    @property
    def well(self) -> bool:
        """Whether the rank did what it was started for.

        One that was stopped may end in good order, as programs that save their state do.
        """
        return self.finished and self.returncode == 0 and not self.stopped

    @property
    def killed(self) -> bool:
        """Whether the rank died of a signal of its own: never because of another rank.

        Not so SIGABRT, which is also how gloo ends a rank that has lost its peer.
        """
        return not self.stopped and self.returncode < 0 and self.returncode != -signal.SIGABRT

    @property
    def secondary(self) -> bool:
        """Whether the rank ended because of another rank."""
        return self.stopped or any(words in self.error for words in SECONDARY)

    def __str__(self) -> str:
        return f"rank {self.rank} {self.how()}"

    def how(self) -> str:
        """The rank's end in a few words."""
        if self.well:
            return "finished"
        if self.stopped:
            return "was stopped"
        if self.returncode < 0:
            return f"died of {signal_name(-self.returncode)}"
        if self.error:
            return f"raised {shorten(self.error, 150)}"
        if self.returncode == 0:
            return "left with exit code 0 before its end"
        return f"left with exit code {self.returncode}"

    def details(self) -> list[str]:
        """Phase, line and operator, as far as they are known."""
        named = (("in phase", self.phase), ("at", self.place), ("inside", self.operator))
        return [f"  {word:<8}  {text}" for word, text in named if text]


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The ends of all ranks, in the order of ranks."""

    ranks: tuple[RankEnd, ...]
    cause: RankEnd | None
    """The rank that broke first; None if all finished."""
    stderr: str = ""
    """The last lines that the cause printed there."""

    def __str__(self) -> str:
        if self.cause is None:
            return f"all {len(self.ranks)} ranks finished"
        others = [f"  {end}" for end in self.ranks if end is not self.cause]
        said = [f"  | {line}" for line in self.stderr.splitlines()]
        return "\n".join(
            [
                str(self.cause),
                *self.cause.details(),
                *(["the others:", *others] if others else []),
                *([f"rank {self.cause.rank} printed:", *said] if said else []),
            ]
        )


def cause_of(broken: Sequence[RankEnd]) -> RankEnd | None:
    """The end that caused the others, of those that were no good ones, the first one first.

    On a busy machine a peer may raise, and end, before the kernel has ended the rank that it
    lost: its connections are closed sooner.
    """
    return min(broken, key=lambda end: (not end.killed, end.secondary), default=None)


def look(directory: Path, rank: int, returncode: int, *, stopped: bool) -> RankEnd:
    """Read the files of a rank that has ended."""
    files = directory / f"rank-{rank}"
    mark = status_page.read(files.with_suffix(".phase"))
    frames = stack_dumps.main_stack(_read(files.with_suffix(".fault")))
    error, *places = _read(files.with_suffix(".error")).splitlines() or [""]
    line = next((frame for frame in frames if _is_users(frame.file)), None)
    _, stacks = stack_dumps.split(_read(files.with_suffix(".err")))
    return RankEnd(
        rank,
        returncode,
        finished=files.with_suffix(".done").exists(),
        stopped=stopped,
        phase="" if error else _phase(mark, frames),
        place=_users(places) or (str(line) if line and returncode <= 0 else ""),
        operator=stack_dumps.culprit(stacks).removeprefix("the operator "),
        error=error,
    )


def tail_of_stderr(directory: Path, rank: int, lines: int = 8) -> str:
    """What a rank printed last, without torch's native stacks."""
    said, _ = stack_dumps.split(_read(directory / f"rank-{rank}.err"))
    return "\n".join([line for line in said.splitlines() if line.strip()][-lines:])


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _phase(mark: status_page.StatusNote, frames: Sequence[stack_dumps.Frame]) -> str:
    """The phase, if the line that began it is still being executed.

    Nobody announces the end of some phases, such as a module's construction; and when an
    exception has come out of the program, all of them have ended.
    """
    lines = {CodeLine(frame.file, frame.line, frame.function) for frame in frames}
    return phase_text(mark.phase) if not lines or mark.site in lines else ""


def _users(places: Sequence[str]) -> str:
    """The innermost place of the user's own code."""
    return next((place for place in places if _is_users(place.rpartition(":")[0])), "")


def _is_users(file: str) -> bool:
    return stack_dumps.is_user_file(file) and not file.startswith(str(Path(__file__).parent))


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
