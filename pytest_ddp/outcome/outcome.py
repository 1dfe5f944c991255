"""Records of one test's run: frozen, written by the supervisor, the input of the merge.

Apart from the protocol, because none of them crosses a process boundary.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from pytest_ddp.protocol.host_messages import Clock
from pytest_ddp.protocol.messages import Done, Phase
from pytest_ddp.protocol.rank_status import CodeLine, RankStatus


class Ending(enum.Enum):
    """How one rank's part in a test ended."""

    DONE = "done"
    """The rank has reported all phases, has cleaned up, and is alive."""
    EXITED = "exited"
    """The process has ended, by a signal or with an exit code (0 included)."""
    ANNOUNCED = "ended as announced"
    """The process has ended in the call, as the test had announced."""
    STOPPED = "stopped"
    """The controller stopped it: another rank had failed, a hang was proved, or at the timeout."""
    NOT_BEGUN = "not begun"
    """The item was not found, or the process group could not be built."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a rank, in a session on several machines."""

    name: str
    """``node 1 (beta)``"""
    clock: Clock | None = None
    """The offset of its clocks from the controller's; None on the controller's machine."""
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class TimedReport:
    """A rank's report with its time, to tell the first failure from its consequences."""

    report: pytest.TestReport
    at: float
    """Seconds since the test began, on the controller's clock."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """The record of one rank after a test."""

    rank: int
    ending: Ending
    at: float
    """Seconds from the test's begin to the rank's ending, on the controller's clock."""
    reports: dict[Phase, TimedReport] = field(default_factory=dict)
    """The reports that arrived; a missing phase is a failure, whatever the other fields hold."""
    subtests: tuple[TimedReport, ...] = ()
    """The reports of subtests, in the order in which they ended."""
    returncode: int | None = None
    """The exit code as in ``subprocess``, for a rank that exited."""
    stacks: str = ""
    """The output of faulthandler: at a fatal signal, at ``exit``, or on the controller's signal."""
    stdout: str = ""
    """Captured output that is in no report, because the rank died before it could send it."""
    stderr: str = ""
    native: str = ""
    """The C++ stacks that torch printed at a fatal signal, one for each thread."""
    children: str = ""
    """The output of faulthandler in processes that the rank forked, such as DataLoader workers."""
    phase: tuple[str, ...] = ()
    """The names of the rank's last phases, outermost first, known after SIGKILL too; empty if
    unknown."""
    began_at: CodeLine | None = None
    """The line of user code that began this phase; None if unknown."""
    seen_at: CodeLine | None = None
    """Where a probe found the main thread in this phase; None if none did."""
    raised: str = ""
    """The exception that had come out of its last phase: ``ValueError: text``; empty if none."""
    problem: str = ""
    """Why the test could not begin on the rank (for NOT_BEGUN)."""
    done: Done | None = None
    status: RankStatus | None = None
    """The rank's last answer to a probe."""
    trace: str = ""
    """The events that the rank wrote for ``--ddp-trace``; empty without this option."""
    machine: Machine | None = None
    """The rank's machine; None in a session on one machine."""
    setup_only: bool = False
    """Whether no call was to follow the setup (``--setup-only``, ``--setup-plan``)."""

    @property
    def ended_well(self) -> bool:
        """True if the rank's part ended as the test intended."""
        return self.ending in (Ending.DONE, Ending.ANNOUNCED)


@dataclass(frozen=True)
class RankLine:
    """One row of the table of ranks, for a hang or a timeout."""

    rank: int
    state: str
    """"waits", "runs", "ended"; at a timeout also "suspended" and "silent"."""
    phase: tuple[str, ...]
    """The names of pytest's phase and of those inside of it, outermost first."""
    collective: str
    """"all_reduce #7 of the default group", or empty."""
    place: CodeLine | None
    """The line of user code, with a short name of its file; None if unknown."""
    group: str = ""
    """torch's name of the collective's process group."""
    number: int | None = None
    """The collective's number on its group in this test, from 1."""
    operation: str = ""
    """The public name of what stands in ``collective``: ``all_reduce``, ``new_group``."""


@dataclass(frozen=True)
class RootCause:
    """The ranks with which a failure began, or why they are unknown."""

    ranks: tuple[int, ...]
    unknown: str = ""
    """The reason why they are unknown, if there are no ranks."""


class HangKind(enum.StrEnum):
    """Why ranks can never go on. A string, as it crosses to another process as JSON."""

    MISMATCH = "mismatch"
    """The ranks' collectives at one place in a group's sequence do not fit together."""
    FOR_ENDED = "for ended"
    """The ranks wait for a rank that has ended the test."""
    FOR_EACH_OTHER = "for each other"
    """The ranks wait in a circle."""


@dataclass(frozen=True)
class Hang:
    """The proof that a test could never have ended."""

    kind: HangKind
    what: str
    """What cannot go on: "rank 0 waits in all_reduce #7 of the default group, ..."."""
    culprits: tuple[int, ...]
    """Ranks outside the hang for which the others wait in vain."""
    table: tuple[RankLine, ...]
    root_cause: RootCause = RootCause((), "no collective was compared")
    hint: str = ""
    """What the ranks' histories show, with a question about the likely cause; or empty."""

    @property
    def sentence(self) -> str:
        """The verdict: "deadlock: rank 0 waits in all_reduce #7 of the default group, ..."."""
        return f"{'mismatch' if self.kind is HangKind.MISMATCH else 'deadlock'}: {self.what}"


@dataclass(frozen=True, slots=True)
class Expiry:
    """What the ranks were doing at the test's timeout."""

    culprits: tuple[int, ...]
    """Ranks that did not wait for a peer."""
    table: tuple[RankLine, ...]
    unknown: str = ""
    """Why there are no culprits."""
    remarks: dict[int, str] = field(default_factory=dict)
    """More about the state of each of these ranks, as a predicate."""


class MessageRoute(NamedTuple):
    """What a send and its receive have in common."""

    group: str
    members: tuple[int, ...]
    """Global ranks of the group."""
    sender: int
    """The global rank that sends; -1 for a receive from any rank."""
    receiver: int
    tag: int


@dataclass(frozen=True, slots=True)
class UnmatchedMessages:
    """Sends that no rank receives, or receives to which no rank sends."""

    route: MessageRoute
    count: int
    """The number of sends; below zero that of receives."""
    site: CodeLine | None
    """The line of the last one; None if a fixture began it before the test."""

    @property
    def missing_end(self) -> int:
        """The rank whose part is missing; -1 for a receive from any rank."""
        return self.route.sender if self.count < 0 else self.route.receiver


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a test must not pass although all ranks did, as a plugin has found."""

    what: str
    """The verdict, in one line without a full stop."""
    code: str = ""
    """The kind of failure, of ``ENTRIES`` in the plugin's ``codes.py``; empty for none."""
    ranks: tuple[int, ...] = ()
    """Ranks that the finding is about; empty for all."""
    lines: tuple[tuple[str, str], ...] = ()
    """The places that matter: words, and ``file:line`` or nothing."""
    consequence: str = ""
    """Sentences on what would happen."""
    fix: str = ""
    """What to do, in a sentence."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The record of one test after its run."""

    nodeid: str
    location: tuple[str, int | None, str]
    keywords: dict[str, int]
    backend: str
    ranks: tuple[RankOutcome, ...]
    start: float
    """Wall-clock time in seconds since the epoch."""
    duration: float
    check_collectives: bool = True
    """Whether differences between the collectives of ranks that ended are a failure."""
    timeout: float | None = None
    """The timeout in seconds, if it ended the test."""
    expiry: Expiry | None = None
    """What the ranks were doing at the timeout; None if it did not end the test."""
    hang: Hang | None = None
    """The proof, if the controller stopped the ranks because they could never end."""
    mismatch: str = ""
    """How the collectives differ between ranks that all ended; empty if they do not."""
    mismatch_cause: RootCause | None = None
    """The ranks that differ from most; None if collectives were not compared."""
    unlike_message: str = ""
    """How both ends of a message differ; empty if those of none do."""
    findings: tuple[tuple[Finding | str, ...], ...] = ()
    """The reasons, for each plugin that found something, why the test must not pass although all
    ranks did."""
    suspicions: tuple[str, ...] = ()
    """Hints that are no verdict: collectives that may be swapped."""
    unfinished: tuple[UnmatchedMessages, ...] = ()
    """Sends and receives without their counterpart, in a test that passed."""
    keeps_group: bool = False
    """Whether the ranks' process groups outlive the test, for a fixture."""
    oom: str = ""
    """What the kernel's OOM killer did during the test, as the end of a sentence."""
    began: float = 0.0
    """The test's begin, in seconds on the monotonic clock."""
    notes: tuple[str, ...] = ()
    """Sentences for the failure text: a retried rendezvous, a rank's replacement."""
    docs_url: str = ""
    """The address of the documentation, for the failure text; empty if there is none."""
    heading: str = ""
    """Lines above the text of a failure, of a plugin that has planned several runs; or empty."""
    closing: str = ""
    """Lines below the text of a failure, of such a plugin; or empty."""


# ------------------------------------------------------------------
# Wording that all texts share.


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 1``, ``ranks 0-2``, ``ranks 0, 2``."""
    numbers = {*ranks}
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(spans(numbers))


def spans(numbers: Iterable[int]) -> list[str]:
    """``0-2`` and ``5`` for these four numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
