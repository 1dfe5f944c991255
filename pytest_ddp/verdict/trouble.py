"""One rank's failure in one phase, in words, and which of several came first.

A rank fails by a report that says so, or by being lost before it could report.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddp.evidence import pythonstacks
from pytest_ddp.evidence.outcome import Ending, RankOutcome, RunOutcome
from pytest_ddp.system.own import signal
from pytest_ddp.wire.protocol import ERRORS, Phase
from pytest_ddp.wire.survey import Handled

_TOGETHER = 0.2
"""Seconds in which ranks reach one line after they left the same collective."""

LONGEST_VERDICT = 300
"""Characters; an exception's first line may be a whole tensor."""

_LAST_WORDS = 100_000
"""Characters of stderr to search: room for torch's C++ stack after what() of an exception."""

_BROKEN_CONNECTION = re.compile(
    r"connection (?:was )?(?:likely )?(?:closed|reset|refused|aborted)"
    r"|broken ?pipe|socket (?:closed|is not connected)|pair closure"
    r"|timed out waiting \d+ms for|timeout waiting for key|wait timeout after"
    r"|timed out after \d+ seconds waiting for clients"
    r"|ncclRemoteError|remote process exited|communicator was aborted"
    r"|failed to recv, got 0 bytes|\bDdpError\b",
    re.IGNORECASE,
)
"""What a rank sees when another one is gone: gloo, the stores, NCCL, the ddp fixture."""

WORKER_KILLED = "killed by signal: Killed"
"""What a DataLoader says of a worker that got SIGKILL."""
_WORKER = "DataLoader worker"
"""How it begins to speak of any worker that is gone."""

_PIPES = ("/multiprocessing/connection.py", "/multiprocessing/reduction.py")
"""Where a process finds that the other end of a pipe is gone."""

_OUT_OF_MEMORY = re.compile(r"^MemoryError\b|OutOfMemoryError|[Oo]ut of memory|allocate memory")

_PREFIX = re.compile(r"^(?:[\w.]+: )?\[[^\]]*:\d+\] |^(?:\w+\.)+(?=\w+: )")
"""Type and C++ source line, with which torch's messages begin; or the module of a type."""

_VARIES = re.compile(r"0x[0-9a-fA-F]+|\[[0-9a-fA-F.:]+\]:\d+")
"""What differs between ranks in one and the same message: addresses, peers' ports."""

_SAYS_RANK = re.compile(r"\brank\W{0,2}$", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"((?<![\d.])\d+(?!\d|\.\d))")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One rank's failure in one phase."""

    rank: RankOutcome
    phase: Phase
    """Where the failure shows: for a lost rank, where its next report should have come."""
    report: pytest.TestReport | None
    """The report that says so; None if the rank was lost instead."""

    @property
    def at(self) -> float:
        """Seconds since the test began."""
        if self.report is None or self.phase not in self.rank.reports:
            return self.rank.at
        return self.rank.reports[self.phase].at

    @property
    def stopped(self) -> bool:
        """True if it was the controller that ended the rank."""
        return self.report is None and self.rank.ending is Ending.STOPPED

    @property
    def is_after_all_reports(self) -> bool:
        """True for a rank that was lost when its own part was over, while others worked."""
        return self.report is None and Phase.TEARDOWN in self.rank.reports

    @property
    def message(self) -> str:
        """The words of the failure itself, over several lines."""
        if self.report is not None:
            return message_of(self.report.longrepr)
        return self.rank.problem if self.rank.ending is Ending.NOT_BEGUN else ""

    @property
    def broken_connection(self) -> bool:
        """True for what a rank sees when another rank is gone."""
        if self.report is not None:
            return not self._speaks_with_child and all(map(_is_of_a_lost_peer, self.errors))
        if self.rank.returncode == -signal.SIGABRT:
            text = self.rank.stderr[-_LAST_WORDS:]
        else:
            text = _problem_line(self.message)
        return _is_broken(text)

    @property
    def errors(self) -> list[str]:
        """The failure's message; of a group those of its exceptions."""
        return getattr(self.report, ERRORS, None) or [self.message]

    @property
    def handled(self) -> Handled | None:
        """The exception whose handler it was in, when it was stopped or lost its peers."""
        if self.stopped:
            return self.rank.standing.handled if self.rank.standing is not None else None
        if self.report is None or not self.broken_connection:
            return None
        chain = getattr(self.report.longrepr, "chain", None) or ()
        crashes = [crash for _, crash, _ in chain if crash is not None]
        # What a rank sees of its peers may be a chain by itself.
        own = (c for c in reversed(crashes[:-1]) if not _BROKEN_CONNECTION.search(str(c.message)))
        if (crash := next(own, None)) is None:
            return None
        kind, _, message = first_line(str(crash.message)).partition(": ")
        return Handled(kind, message, f"{crash.path}:{crash.lineno}")

    @property
    def doing(self) -> str:
        """The phase with what was inside it, as far as the rank has noted: "call: backward"."""
        noted = self.rank.phase
        return noted if noted.startswith(f"{self.phase}: ") else self.phase.value

    @property
    def _speaks_with_child(self) -> bool:
        """True if a pipe to a process of the rank's own broke, not one to another rank.

        A DataLoader fetches a tensor's descriptor over such a pipe: when its worker has died
        in that moment, this is all that it says.
        """
        site = crash_site(self.report) if self.report is not None else None
        return site is not None and site[0].endswith(_PIPES)

    @property
    def child_death(self) -> pythonstacks.Dump | None:
        """The stacks of a process that the rank had forked, if its death is what failed."""
        if self.report is not None:
            if _WORKER not in self.message and not self._speaks_with_child:
                return None
        elif self.rank.ending is not Ending.EXITED or (self.rank.returncode or 0) <= 0:
            return None
        dumps = pythonstacks.parse_stacks(self.rank.children)
        return next((dump for dump in dumps if dump.fatal and dump.main() is not None), None)

    @property
    def where(self) -> str:
        """Where the rank was lost, as the end of a sentence; empty if nothing is known."""
        if (frame := self.user_frame) is not None:
            beside = self.report is None and pythonstacks.is_beside_the_test(self.rank.stacks)
            return f"in a thread beside the test, begun at {frame}" if beside else f"at {frame}"
        # A page is all that SIGKILL leaves.
        if self.rank.ending not in (Ending.EXITED, Ending.STOPPED):
            return ""
        words, place = pythonstacks.noted(self.rank.seen_at, self.rank.began_at)
        return f"{words} {pythonstacks.shorten(place)}" if place else ""

    @property
    def user_frame(self) -> pythonstacks.Frame | None:
        """Where it was in the user's code."""
        if self.report is not None:
            own = _raised_at(self.report.longrepr)
        else:
            stacks = self.rank.stacks
            own = pythonstacks.user_line(pythonstacks.main_stack(stacks)) or pythonstacks.user_line(
                pythonstacks.test_stack(stacks)
            )
            own = own or pythonstacks.raised_at(stacks)
        return self._line_of_child() or own

    def _line_of_child(self) -> pythonstacks.Frame | None:
        dump = self.child_death
        main = dump.main() if dump is not None else None
        return None if main is None else pythonstacks.user_line(main.frames)

    @property
    def place(self) -> str:
        """``file:line in function`` of the user's code; empty if nothing is known."""
        if (frame := self.user_frame) is not None:
            return str(frame)
        return pythonstacks.shorten(pythonstacks.noted(self.rank.seen_at, self.rank.began_at)[1])


def _is_of_a_lost_peer(message: str) -> bool:
    text = first_line(message)
    # A test that compares such words is about them, and no victim.
    return _is_broken(text) and not text.startswith(("assert ", "AssertionError", "Failed: "))


def _is_broken(text: str) -> bool:
    return _BROKEN_CONNECTION.search(text) is not None and "EnforceNotMet" not in text


def lost_phase(rank: RankOutcome) -> Phase | None:
    """The phase whose report a rank owes; None for a rank that delivered all and lives.

    A rank that ends after its last report still failed to end the test: the last phase.
    """
    setup = rank.reports.get(Phase.SETUP)
    if setup is None:
        return Phase.SETUP
    calls = setup.report.passed and not rank.setup_only
    if calls and Phase.CALL not in rank.reports:
        return Phase.CALL
    if Phase.TEARDOWN not in rank.reports or not rank.ended_well:
        return Phase.TEARDOWN
    return None


def tell_apart(
    troubles: Iterable[Trouble], outcome: RunOutcome
) -> tuple[list[Trouble], list[Trouble]]:
    """The original failures and the mere consequences of them, each earliest first.

    A broken connection and a stop by the controller are consequences when some rank
    failed by itself. When the time was over or a hang was proven, and none had, the
    ranks that had to be stopped are the story. A connection that broke in the handler of an
    exception is a consequence too, but tells of the exception.
    """
    ordered = _in_order(troubles)
    stopped = [trouble for trouble in ordered if trouble.stopped]
    broken = [t for t in ordered if not t.stopped and t.broken_connection]
    own = [t for t in ordered if not t.stopped and t not in broken]
    hang = outcome.timeout is not None or outcome.hang is not None
    began = [trouble for trouble in broken if trouble.handled is not None]
    choices = (own, stopped, began, broken) if hang else (own, began, broken, stopped)
    roots = next((choice for choice in choices if choice), [])
    return roots, [trouble for trouble in ordered if trouble not in roots]


def frames_of(trouble: Trouble) -> tuple[pythonstacks.Frame, ...]:
    """The stack that tells most, without pytest's machinery, most recent call first."""
    if (dump := trouble.child_death) is not None and (main := dump.main()) is not None:
        return pythonstacks.trim(main.frames)
    if trouble.report is None:
        return pythonstacks.trim(pythonstacks.main_stack(trouble.rank.stacks))
    entries = getattr(getattr(trouble.report.longrepr, "reprtraceback", None), "reprentries", ())
    places = [place for entry in entries if (place := getattr(entry, "reprfileloc", None))]
    return tuple(pythonstacks.Frame(place.path, place.lineno, "") for place in reversed(places))


def is_out_of_memory(trouble: Trouble, oom: str) -> bool:
    """True for a rank that was killed for want of memory, or whose allocation failed.

    Args:
        trouble: the rank's failure.
        oom: what the kernel's killer did during the test; empty for nothing.
    """
    if trouble.report is None:
        rank = trouble.rank
        return bool(oom) and rank.returncode == -signal.SIGKILL and not rank.problem
    if oom and WORKER_KILLED in trouble.message:
        return True
    text = first_line(trouble.message)
    return not text.startswith("assert ") and _OUT_OF_MEMORY.search(text) is not None


def _in_order(troubles: Iterable[Trouble]) -> list[Trouble]:
    """Earliest first; by rank where ranks fail at one line, a moment after each other."""
    first_at: dict[Hashable, float] = {}

    def moment(trouble: Trouble) -> float:
        site = crash_site(trouble.report) if trouble.report is not None else None
        if site is None:
            return trouble.at
        first = first_at.setdefault(site, trouble.at)
        return first if trouble.at - first < _TOGETHER else trouble.at

    by_time = sorted(troubles, key=lambda trouble: (trouble.at, trouble.rank.rank))
    timed = [(moment(trouble), trouble) for trouble in by_time]
    return [trouble for _, trouble in sorted(timed, key=lambda pair: (pair[0], pair[1].rank.rank))]


def fold(troubles: Iterable[Trouble]) -> list[list[Trouble]]:
    """Groups of like failures, by the time of their first."""
    groups: list[list[Trouble]] = []
    known: dict[Hashable, list[tuple[list[Trouble], list[str]]]] = {}
    for trouble in troubles:
        likeness, text = _likeness(trouble)
        parts = _WHOLE_NUMBER.split(without_addresses(text))
        like = known.setdefault((likeness, *parts[::2]), [])
        group = next(
            (group for group, told in like if _are_alike(group[0], told, trouble, parts)), []
        )
        if not group:
            groups.append(group)
            like.append((group, parts))
        group.append(trouble)
    return groups


def _are_alike(first: Trouble, told: list[str], second: Trouble, parts: list[str]) -> bool:
    """Whether two texts are equal but for the ranks' own numbers, and speak of ranks there."""
    own = (str(first.rank.rank), str(second.rank.rank))
    others = [
        number for number, pair in enumerate(zip(told, parts, strict=True)) if len({*pair}) > 1
    ]
    return all((told[number], parts[number]) == own for number in others) and (
        not others or any(_SAYS_RANK.search(parts[number - 1]) for number in others)
    )


def _likeness(trouble: Trouble) -> tuple[Hashable, str]:
    """What is equal in like failures, and the text in which a rank may have its own number."""
    if trouble.report is None:
        rank = trouble.rank
        frames = pythonstacks.trim(pythonstacks.main_stack(rank.stacks))
        page = () if frames else (trouble.doing, rank.began_at)
        return (trouble.phase, rank.ending, rank.returncode, frames, page), rank.problem
    return (trouble.phase, crash_site(trouble.report)), trouble.message


def without_addresses(text: str) -> str:
    """A text without what differs between ranks in one and the same message."""
    return _VARIES.sub("*", text)


def crash_site(report: pytest.TestReport) -> tuple[str, int] | None:
    """Path and line (from 1) where the exception was raised, if pytest knows."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return None if crash is None else (str(crash.path), int(crash.lineno))


def first_line(text: str) -> str:
    """The first line that says something, cut where nobody would read on."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_VERDICT else line[: LONGEST_VERDICT - 3] + "..."


def what_happened(trouble: Trouble) -> str:
    """One line on it: a report's message, or the predicate of a sentence about the rank."""
    rank, phase = trouble.rank, trouble.phase
    if (dump := trouble.child_death) is not None:
        return f"a process that it forked died of {signal_name(dump.signal)} in {trouble.doing}"
    if trouble.report is not None:
        return first_line("; ".join(reasons(trouble))) or "failed without a message"
    if rank.ending is Ending.NOT_BEGUN:
        return f"could not begin: {_problem_line(rank.problem)}"
    if rank.ending is Ending.STOPPED:
        return f"stopped in {trouble.doing}{_while_handling(trouble)}"
    if rank.ending is Ending.DONE:
        reason = rank.done.exit_reason if rank.done else None
        why = f" (pytest.exit: {first_line(reason)})" if reason is not None else ""
        return f"ended its test without a {phase} report{why}"
    when = f"in {trouble.doing}"
    if phase in rank.reports:
        when = f"after reporting {phase}"
    elif (rank.returncode or 0) >= 0 and rank.returncode is not None:
        when = f"before reporting {trouble.doing}"
    if rank.returncode is None or (rank.returncode == -signal.SIGKILL and rank.problem):
        return f"{rank.problem or 'died'} {when}"
    return f"{exit_words(rank.returncode)} {when}"


def _while_handling(trouble: Trouble) -> str:
    return "" if trouble.handled is None else f" while handling {trouble.handled}"


def reasons(trouble: Trouble) -> list[str]:
    """What a report says went wrong: one text, or of ranks that lost their peers one for each."""
    if not trouble.broken_connection:
        return [trouble.message]
    plain = [*dict.fromkeys(map(_plain, trouble.errors))]
    handling = _while_handling(trouble).lstrip()
    return [f"{handling}: {'; '.join(plain)}"] if handling else plain


def exit_words(returncode: int) -> str:
    """How a process ended by itself: ``died of SIGSEGV``, ``exited with code 3``."""
    if returncode < 0:
        return f"died of {signal_name(-returncode)}"
    return f"exited with code {returncode}"


def _plain(message: str) -> str:
    """A broken connection's first sentence, without exception type, C++ source line and port."""
    sentence = _PREFIX.sub("", first_line(message)).partition(". ")[0]
    return re.sub(r" ?\[[0-9a-fA-F.:]+\]:\d+", "", sentence)


def _problem_line(problem: str) -> str:
    """The heading and, where a traceback follows it, the traceback's last line."""
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return first_line(f"{lines[0]} {lines[-1]}")
    return first_line(problem).rstrip(":") or "no reason given"


def signal_name(number: int) -> str:
    """``SIGSEGV``; ``signal 63`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def message_of(longrepr: Any) -> str:
    """What pytest would show as the failure's message, for any ``longrepr`` it may have."""
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)
    if isinstance(longrepr, (tuple, list)) and len(longrepr) == 3:
        return str(longrepr[2])
    if longrepr is None:
        return ""
    try:
        return str(longrepr)
    except Exception as error:
        return f"<{type(error).__name__} while printing the failure>"


def _raised_at(longrepr: Any) -> pythonstacks.Frame | None:
    with contextlib.suppress(AttributeError):
        for entry in reversed(longrepr.reprtraceback.reprentries):
            place = getattr(entry, "reprfileloc", None)
            if place is not None and pythonstacks.is_user_file(place.path):
                return pythonstacks.Frame(place.path, place.lineno, "")
    return None


def clean(text: str) -> str:
    """``text`` as something that every file and channel takes: no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
