"""One rank's failure in one phase, its text, and which of several failures is the original.

A rank fails by a failed report, or it is lost before it could report.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Ending, RankOutcome, RunOutcome
from pytest_ddp.protocol.messages import CODE, ERRORS, Phase
from pytest_ddp.protocol.rank_status import CodeLine, Handled, Raised, phase_text
from pytest_ddp.protocol.status_page import IMPORT
from pytest_ddp.system.stdlib import signal

_TOGETHER = 0.2
"""Seconds within which ranks reach the same line after they left the same collective."""

LONGEST_VERDICT = 300
"""Characters of a verdict at most; an exception's first line may be a whole tensor."""

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
"""Messages on a rank after another one has died: of gloo, the stores, NCCL; and the type of the
exception of the ddp fixture, as Python and C++ write it before its message."""

WORKER_KILLED = "killed by signal: Killed"
"""A text in the message of a DataLoader whose worker got SIGKILL."""
_WORKER = "DataLoader worker"
"""A text in the message of a DataLoader after the death of any worker."""

_PIPES = ("/multiprocessing/connection.py", "/multiprocessing/reduction.py")
"""Files that raise when the process at the other end of a pipe has died."""

_OUT_OF_MEMORY = re.compile(r"^MemoryError\b|OutOfMemoryError|[Oo]ut of memory|allocate memory")

_PREFIX = re.compile(r"^(?:[\w.]+: )?\[[^\]]*:\d+\] |^(?:\w+\.)+(?=\w+: )")
"""Type and C++ source line at the beginning of torch's messages; or the module of a type."""

_VARIES = re.compile(r"0x[0-9a-fA-F]+|\[[0-9a-fA-F.:]+\]:\d+")
"""Parts of a message that differ between ranks: addresses, ports of peers."""

_SAYS_RANK = re.compile(r"\brank\W{0,2}$", re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"((?<![\d.])\d+(?!\d|\.\d))")


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank's failure in one phase."""

    rank: RankOutcome
    phase: Phase
    """The phase of the failure; for a lost rank, that of its first missing report."""
    report: pytest.TestReport | None
    """The failed report; None if the rank was lost instead."""

    @property
    def at(self) -> float:
        """Seconds since the test began."""
        if self.report is None or self.phase not in self.rank.reports:
            return self.rank.at
        return self.rank.reports[self.phase].at

    @property
    def stopped(self) -> bool:
        """True if the controller ended the rank."""
        return self.report is None and self.rank.ending is Ending.STOPPED

    @property
    def is_after_all_reports(self) -> bool:
        """True for a rank that was lost after its last report, while others worked."""
        return self.report is None and Phase.TEARDOWN in self.rank.reports

    @property
    def message(self) -> str:
        """The message of the failure, with several lines."""
        if self.report is not None:
            return message_of(self.report.longrepr)
        return self.rank.problem if self.rank.ending is Ending.NOT_BEGUN else ""

    @property
    def broken_connection(self) -> bool:
        """True for the failure of a rank after another rank has died."""
        if self.report is not None:
            return not self._speaks_with_child and all(map(_is_of_a_lost_peer, self.errors))
        if self.rank.returncode == -signal.SIGABRT:
            text = self.rank.stderr[-_LAST_WORDS:]
        else:
            text = problem_line(self.message)
        return _is_broken(text)

    @property
    def errors(self) -> list[str]:
        """The failure's message; for an exception group, those of its exceptions."""
        return getattr(self.report, ERRORS, None) or [self.message]

    @property
    def code(self) -> str:
        """The code that the plugin has given the exception; empty for exceptions of others."""
        return str(getattr(self.report, CODE, ""))

    @property
    def handled(self) -> Handled | None:
        """The exception that the rank handled when it was stopped or lost its peers."""
        if self.stopped:
            return self.rank.status.handled if self.rank.status is not None else None
        if self.report is None or not self.broken_connection:
            return None
        chain = getattr(self.report.longrepr, "chain", None) or ()
        crashes = [crash for _, crash, _ in chain if crash is not None]
        # The exception for a lost peer may itself have a chain.
        own = [c for c in crashes[:-1] if not _BROKEN_CONNECTION.search(str(c.message))]
        if not own:
            return None
        last = _raised(own[-1])
        before = _raised(own[0]) if len(own) > 1 else None
        return Handled(last.kind, last.message, last.place, before)

    @property
    def phases(self) -> tuple[str, ...]:
        """The names of the phase and of those inside of it, as far as the rank noted them."""
        noted = self.rank.phase
        return noted if noted[:1] == (self.phase,) else (self.phase.value,)

    @property
    def doing(self) -> str:
        """These names in words: "call: backward"."""
        return phase_text(self.phases)

    @property
    def is_importing(self) -> bool:
        """True for a rank that was lost while it imported the test's file."""
        return self.phases[:2] == (Phase.SETUP, IMPORT)

    @property
    def _speaks_with_child(self) -> bool:
        """True if a pipe to a child process of the rank broke, not a connection to another rank.

        A DataLoader fetches a tensor's descriptor over such a pipe: if its worker dies at that
        moment, this is the only message.
        """
        site = crash_site(self.report) if self.report is not None else None
        return site is not None and site[0].endswith(_PIPES)

    @property
    def child_crash(self) -> stack_dumps.Dump | None:
        """The stacks of a process that the rank forked, if the failure is its death."""
        if self.report is not None:
            if _WORKER not in self.message and not self._speaks_with_child:
                return None
        elif self.rank.ending is not Ending.EXITED or (self.rank.returncode or 0) <= 0:
            return None
        dumps = stack_dumps.parse_stacks(self.rank.children)
        return next((dump for dump in dumps if dump.fatal and dump.main() is not None), None)

    @property
    def where(self) -> str:
        """The place at which the rank was lost, as the end of a sentence; empty if unknown."""
        if (frame := self.user_frame) is not None:
            beside = self.report is None and stack_dumps.is_outside_test_thread(self.rank.stacks)
            return f"in a thread beside the test, begun at {frame}" if beside else f"at {frame}"
        # After SIGKILL there is no stack, only the last phase.
        if self.rank.ending not in (Ending.EXITED, Ending.STOPPED):
            return ""
        noted = stack_dumps.last_place(self.rank.seen_at, self.rank.began_at)
        return "" if noted is None else " ".join(map(str, noted))

    @property
    def user_frame(self) -> stack_dumps.Frame | None:
        """The line of the user's code where the rank was; None if unknown."""
        if self.report is not None:
            own = _raised_at(self.report.longrepr)
        else:
            stacks = self.rank.stacks
            own = stack_dumps.user_line(stack_dumps.main_stack(stacks)) or stack_dumps.user_line(
                stack_dumps.test_stack(stacks)
            )
            own = own or stack_dumps.raised_at(stacks)
        return self._line_of_child() or own

    def _line_of_child(self) -> stack_dumps.Frame | None:
        dump = self.child_crash
        main = dump.main() if dump is not None else None
        return None if main is None else stack_dumps.user_line(main.frames)

    @property
    def place(self) -> CodeLine | None:
        """The line of the user's code, with a short name of its file; None if unknown."""
        if (frame := self.user_frame) is not None:
            return frame.short
        noted = stack_dumps.last_place(self.rank.seen_at, self.rank.began_at)
        return None if noted is None else noted[1]


def _raised(crash: Any) -> Raised:
    """The exception of an entry of a report's chain."""
    kind, _, message = first_line(str(crash.message)).partition(": ")
    return Raised(kind, message, CodeLine(str(crash.path), int(crash.lineno)))


def _is_of_a_lost_peer(message: str) -> bool:
    text = first_line(message)
    # An assertion on such a message is a failure of its own, not the loss of a peer.
    return _is_broken(text) and not text.startswith(("assert ", "AssertionError", "Failed: "))


def _is_broken(text: str) -> bool:
    return _BROKEN_CONNECTION.search(text) is not None and "EnforceNotMet" not in text


def lost_phase(rank: RankOutcome) -> Phase | None:
    """The phase of a rank's missing report; None for a rank that delivered all and lives.

    A rank that ends after its last report did not end the test: this counts as the last phase.
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


def split_consequences(
    troubles: Iterable[RankFailure], outcome: RunOutcome
) -> tuple[list[RankFailure], list[RankFailure]]:
    """The original failures and their mere consequences, each earliest first.

    A broken connection and a stop by the controller are consequences if some rank failed for a
    reason of its own. If none did, and the time was over or a hang was proved, the stopped ranks
    are the original failures. A connection that broke in the handler of an exception is a
    consequence too, but names the exception.
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


def frames_of(trouble: RankFailure) -> tuple[stack_dumps.Frame, ...]:
    """The most informative stack, without frames of pytest, most recent call first."""
    if (dump := trouble.child_crash) is not None and (main := dump.main()) is not None:
        return stack_dumps.trim(main.frames)
    if trouble.report is None:
        return stack_dumps.trim(stack_dumps.main_stack(trouble.rank.stacks))
    entries = getattr(getattr(trouble.report.longrepr, "reprtraceback", None), "reprentries", ())
    places = [place for entry in entries if (place := getattr(entry, "reprfileloc", None))]
    return tuple(stack_dumps.Frame(place.path, place.lineno, "") for place in reversed(places))


def is_out_of_memory(trouble: RankFailure, oom: str) -> bool:
    """True for a rank that was killed because of lack of memory, or with a failed allocation.

    Args:
        trouble: the rank's failure.
        oom: what the kernel's OOM killer did during the test; empty for nothing.
    """
    if trouble.report is None:
        rank = trouble.rank
        return bool(oom) and rank.returncode == -signal.SIGKILL and not rank.problem
    if oom and WORKER_KILLED in trouble.message:
        return True
    text = first_line(trouble.message)
    return not text.startswith("assert ") and _OUT_OF_MEMORY.search(text) is not None


def _in_order(troubles: Iterable[RankFailure]) -> list[RankFailure]:
    """Earliest first; by rank if ranks fail at the same line within a moment."""
    first_at: dict[Hashable, float] = {}

    def moment(trouble: RankFailure) -> float:
        site = crash_site(trouble.report) if trouble.report is not None else None
        if site is None:
            return trouble.at
        first = first_at.setdefault(site, trouble.at)
        return first if trouble.at - first < _TOGETHER else trouble.at

    by_time = sorted(troubles, key=lambda trouble: (trouble.at, trouble.rank.rank))
    timed = [(moment(trouble), trouble) for trouble in by_time]
    return [trouble for _, trouble in sorted(timed, key=lambda pair: (pair[0], pair[1].rank.rank))]


def group_same(troubles: Iterable[RankFailure]) -> list[list[RankFailure]]:
    """Groups of the same failure, by the time of their first."""
    groups: list[list[RankFailure]] = []
    by_key: dict[Hashable, list[tuple[list[RankFailure], list[str]]]] = {}
    for trouble in troubles:
        key, text = _key(trouble)
        parts = _WHOLE_NUMBER.split(without_addresses(text))
        same_key = by_key.setdefault((key, *parts[::2]), [])
        group = next(
            (group for group, firsts in same_key if _are_same(group[0], firsts, trouble, parts)), []
        )
        if not group:
            groups.append(group)
            same_key.append((group, parts))
        group.append(trouble)
    return groups


def _are_same(
    first: RankFailure, first_parts: list[str], second: RankFailure, second_parts: list[str]
) -> bool:
    """Whether two texts are equal but for each rank's own number, after the word "rank"."""
    own = (str(first.rank.rank), str(second.rank.rank))
    pairs = [*zip(first_parts, second_parts, strict=True)]
    others = [number for number, pair in enumerate(pairs) if len({*pair}) > 1]
    return all(pairs[number] == own for number in others) and (
        not others or any(_SAYS_RANK.search(second_parts[number - 1]) for number in others)
    )


def _key(trouble: RankFailure) -> tuple[Hashable, str]:
    """What is equal in the same failure of ranks, and the text with a rank's own number."""
    if trouble.report is None:
        rank = trouble.rank
        stacks = [stack_dumps.trim(each.frames) for each in stack_dumps.shown_stacks(rank.stacks)]
        page = () if stacks else (trouble.doing, rank.began_at)
        return (trouble.phase, rank.ending, rank.returncode, *stacks, page), rank.problem
    return (trouble.phase, crash_site(trouble.report)), trouble.message


def without_addresses(text: str) -> str:
    """A text without the parts that differ between ranks in the same message."""
    return _VARIES.sub("*", text)


def crash_site(report: pytest.TestReport) -> tuple[str, int] | None:
    """Path and line (from 1) where the exception was raised; None if pytest does not know."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return None if crash is None else (str(crash.path), int(crash.lineno))


def first_line(text: str) -> str:
    """The first line that is not blank, at most :data:`LONGEST_VERDICT` characters of it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_VERDICT else line[: LONGEST_VERDICT - 3] + "..."


def describe(trouble: RankFailure) -> str:
    """The failure in one line: a report's message, or the predicate of a sentence on the rank."""
    rank, phase = trouble.rank, trouble.phase
    if (dump := trouble.child_crash) is not None:
        return f"a process that it forked died of {signal_name(dump.signal)} in {trouble.doing}"
    if trouble.report is not None:
        return first_line("; ".join(reasons(trouble))) or "failed without a message"
    if rank.ending is Ending.NOT_BEGUN:
        return f"could not begin: {problem_line(rank.problem)}"
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
    return f"{exit_text(rank.returncode)} {when}"


def _while_handling(trouble: RankFailure) -> str:
    return "" if trouble.handled is None else f" while handling {trouble.handled}"


def reasons(trouble: RankFailure) -> list[str]:
    """The messages of a report: one, or one for each exception if the rank lost its peers."""
    if not trouble.broken_connection:
        return [trouble.message]
    plain = [*dict.fromkeys(map(_plain, trouble.errors))]
    handling = _while_handling(trouble).lstrip()
    return [f"{handling}: {'; '.join(plain)}"] if handling else plain


def exit_text(returncode: int) -> str:
    """How a process ended: ``died of SIGSEGV``, ``exited with code 3``."""
    if returncode < 0:
        return f"died of {signal_name(-returncode)}"
    return f"exited with code {returncode}"


def _plain(message: str) -> str:
    """The first sentence on a broken connection, without exception type, C++ source and port."""
    sentence = _PREFIX.sub("", first_line(message)).partition(". ")[0]
    return re.sub(r" ?\[[0-9a-fA-F.:]+\]:\d+", "", sentence)


def problem_line(problem: str) -> str:
    """The heading and, if a traceback follows it, the traceback's last line."""
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
    """The failure's message as pytest shows it, for any kind of ``longrepr``."""
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


def _raised_at(longrepr: Any) -> stack_dumps.Frame | None:
    with contextlib.suppress(AttributeError):
        for entry in reversed(longrepr.reprtraceback.reprentries):
            place = getattr(entry, "reprfileloc", None)
            if place is not None and stack_dumps.is_user_file(place.path):
                return stack_dumps.Frame(place.path, place.lineno, "")
    return None


def clean(text: str) -> str:
    """``text`` without lone surrogates, which not every file and channel can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
