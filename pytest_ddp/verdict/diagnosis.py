"""The diagnosis of a failed phase, from which text, JSON and properties are made.

Pure. :mod:`pytest_ddp.verdict.merge` decides whether a test failed; this only explains it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import (
    Ending,
    Hang,
    HangKind,
    RankLine,
    RootCause,
    RunOutcome,
    ranks_text,
)
from pytest_ddp.outcome.stack_dumps import short_line
from pytest_ddp.protocol.messages import EXIT_LINK_LOST, Phase
from pytest_ddp.protocol.rank_status import CodeLine, Handled, Raised
from pytest_ddp.system.stdlib import signal
from pytest_ddp.verdict import codes
from pytest_ddp.verdict.lost_ranks import is_gloo_mismatch
from pytest_ddp.verdict.rank_failure import (
    RankFailure,
    clean,
    crash_site,
    describe,
    first_line,
    frames_of,
    group_same,
    is_out_of_memory,
    signal_name,
    split_consequences,
)

# ------------------------------------------------------------------
# Exceptions that ranks handle: if a handler communicates and hangs, the exception is the cause.

ByRank = Mapping[int, Handled | None]
"""What each rank of a test handles; None for a rank that handles no exception, or if unknown."""


def verdict_prefix(handled: ByRank) -> str:
    """The beginning of the verdict if ranks handle exceptions, and not all of the same type."""
    if _are_all_equal(handled):
        return ""
    groups: dict[tuple[str, CodeLine], list[tuple[int, Handled]]] = {}
    for rank, error in sorted(handled.items(), key=itemgetter(0)):
        if error is not None:
            groups.setdefault((error.kind, error.place), []).append((rank, error))
    words = [
        _with_first(group[0][1], ranks_text(rank for rank, _ in group)) for group in groups.values()
    ]
    return f"while handling {' and '.join(words)}: " if words else ""


def note(handled: ByRank) -> str:
    """A sentence for the notes if all ranks handle the same type, as a legal test may."""
    if not _are_all_equal(handled):
        return ""
    error = next(filter(None, handled.values()))
    return f"all ranks wait in a handler of {_with_first(error)}"


def _with_first(error: Handled, ranks: str = "") -> str:
    """The exception and the first one of its chain, each with its line."""
    words = f"{error.words} ({ranks and f'{ranks}, '}{_line(error)})"
    first = error.first
    return f"{words}, raised after {first.words} ({_line(first)})" if first else words


def _are_all_equal(handled: ByRank) -> bool:
    kinds = {error and error.kind for error in handled.values()}
    return len(kinds) == 1 and None not in kinds


def _line(error: Raised) -> str:
    return str(replace(short_line(error.place), function=""))


class Kind(enum.StrEnum):
    """The kind of failure; part of the JSON schema."""

    FAILURE = "failure"
    """An exception, on the rank in the verdict."""
    CRASH = "crash"
    """A signal ended the rank."""
    EXIT = "exit"
    """The rank exited with a code, 0 included, before it reported."""
    OUT_OF_MEMORY = "out of memory"
    """The kernel killed a process because of lack of memory, or an allocation failed."""
    DEADLOCK = "deadlock"
    """Proved: some ranks wait for something that can never happen."""
    MISMATCH = "mismatch"
    """Proved: ranks wait in collectives that contradict each other."""
    TIMEOUT = "timeout"
    """Nothing was proved, and the time was over."""
    STOPPED = "stopped"
    """The rank was still at work when it was stopped because of another phase's failure."""
    NOT_BEGUN = "not begun"
    """The rank could not begin the test."""
    COLLECTIVES = "unlike collectives"
    """All ranks ended, and had called different collectives."""
    MESSAGES = "unlike messages"
    """All ranks ended, and both ends of a message differ in dtype."""
    FINDING = "finding"
    """All ranks passed, and a plugin has found why the test must not."""
    DISAGREEMENT = "disagreement"
    """The ranks ended in different ways, and none failed: some were skipped."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Why a phase fails that has not failed on any single rank.

    For example different results, unequal numbers of collectives, or that ranks could not go on
    after the failure of an earlier phase.
    """

    kind: Kind
    text: str
    """The text, laid out; its first line is the verdict."""
    code: str = ""
    """A code of :mod:`pytest_ddp.verdict.codes`; empty for none."""
    advice: str = ""
    """How to fix the test, in sentences; or empty."""

    @property
    def verdict(self) -> str:
        """The verdict, in one sentence."""
        return first_line(self.text)

    @property
    def names_ranks(self) -> bool:
        """Whether the verdict names the ranks that it is about."""
        return self.kind in (Kind.DISAGREEMENT, Kind.FINDING)


class UntroubledRank(NamedTuple):
    """A rank that has not failed itself."""

    rank: int
    state: str
    """``passed``, ``skipped``."""
    said: str
    """The state with its reason, as a predicate: ``skipped (no GPU)``."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The input of the diagnosis of one failed phase."""

    outcome: RunOutcome
    phase: Phase
    troubles: tuple[RankFailure, ...]
    disagreement: Disagreement | None = None
    """Why the phase failed, if it did on no single rank."""
    place: tuple[str, int] | None = None
    """Path and line (from 1) of a disagreement."""
    others: tuple[UntroubledRank, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the end of the text."""
    after: Phase | None = None
    """The phase of the test's first failure; None if this phase is the first that failed."""


@dataclass(frozen=True, slots=True)
class RankDiagnosis:
    """One rank in a diagnosis."""

    rank: int
    state: str
    """waits, runs, suspended, silent, ended, died, exited, stopped, failed, passed, skipped, not
    begun, unknown."""
    phase: tuple[str, ...]
    """The names of pytest's phase and of those inside of it, outermost first; empty for a rank that
    has ended."""
    collective: str
    """The collective in which the rank waits, ``all_reduce #7 of the default group``; or empty."""
    group: str
    """Name of the collective's process group, as torch has it."""
    number: int | None
    """Number of the collective on its group in this test, from 1."""
    place: CodeLine | None
    """The line of user code, with a short name of its file; None if unknown."""
    said: str
    """What happened, as a predicate: ``died of SIGSEGV in call``."""
    exit_code: int | None
    signal: str
    """``SIGSEGV``, or empty."""
    operator: str
    """The native code in which the rank crashed: ``the operator at::_ops::...``; or empty."""
    stack: tuple[stack_dumps.Frame, ...]
    """The most informative stack, most recent call first; empty if there is none."""
    handling: str = ""
    """The exception that the rank handled: ``ValueError: ...``; or empty."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a phase failed."""

    nodeid: str
    phase: Phase
    kind: Kind
    code: str
    """A code of :mod:`pytest_ddp.verdict.codes`; empty for an exception or a finding without
    one."""
    verdict: str
    """The verdict, in one sentence."""
    what: str
    """The verdict without its kind, where it begins with that; else the same."""
    hint: str
    """A question about the likely cause, with what the ranks' histories show; or empty."""
    root_cause: RootCause
    ranks: tuple[RankDiagnosis, ...]
    notes: tuple[str, ...]
    place: tuple[str, int]
    """Path and line (from 1) for ``--tb=line`` and for editors."""
    roots: tuple[tuple[RankFailure, ...], ...]
    """Original failures, the same ones of several ranks together, earliest first."""
    echoes: tuple[RankFailure, ...]
    """Failures that are mere consequences."""


def is_doubtful(outcome: RunOutcome, diagnoses: Sequence[Diagnosis]) -> bool:
    """Whether a test had more than exceptions in the call after which all ranks went on."""
    lost = any(not rank.ended_well for rank in outcome.ranks)
    plain = {(Kind.FAILURE, Phase.CALL), (Kind.FINDING, Phase.CALL)}
    return lost or any((found.kind, found.phase) not in plain for found in diagnoses)


def diagnose_failure(failure: Failure) -> Diagnosis:
    """Find the root cause of a failed phase, and what every rank was doing."""
    roots, echoes = split_consequences(failure.troubles, failure.outcome)
    if failure.disagreement is not None:
        roots, echoes = [], [*roots, *echoes]
    groups = _culprits_first(failure.outcome, group_same(roots))
    in_handlers = note(_handled(failure)) if roots and roots[0].stopped else ""
    kind = _kind(failure, groups)
    notes = (*_details(failure), *failure.notes, *failure.outcome.notes, in_handlers)
    verdict, hang = clean(_verdict(failure, groups)), _sole_hang(failure, groups)
    return Diagnosis(
        nodeid=failure.outcome.nodeid,
        phase=failure.phase,
        kind=kind,
        code=_code(failure, kind, groups),
        verdict=verdict,
        what=verdict if hang is None else clean(first_line(hang.what)),
        hint="" if hang is None else clean(hang.hint),
        root_cause=_root_cause(failure, groups),
        ranks=tuple(_ranks(failure)),
        notes=tuple(map(clean, dict.fromkeys(filter(None, notes)))),
        place=_place(failure, groups),
        roots=groups,
        echoes=tuple(echoes),
    )


def _details(failure: Failure) -> list[str]:
    """The lines of a plugin's finding below the verdict, without indents."""
    if failure.disagreement is None or failure.disagreement.kind is not Kind.FINDING:
        return []
    return [line.strip() for line in failure.disagreement.text.splitlines()[1:]]


def _root_cause(failure: Failure, groups: Sequence[Sequence[RankFailure]]) -> RootCause:
    outcome = failure.outcome
    if not groups:
        if (unknown := _WITHOUT_ROOT.get(_kind(failure, groups))) is not None:
            return RootCause((), unknown)
        return outcome.mismatch_cause or RootCause((), "the calls of the ranks are not known")
    first = groups[0][0]
    if first.stopped and outcome.hang is not None:
        return outcome.hang.root_cause
    if first.stopped and outcome.expiry is not None:
        return RootCause(outcome.expiry.culprits, outcome.expiry.unknown)
    if first.report is None and is_gloo_mismatch(first.rank):
        return RootCause((), "gloo aborts a rank that receives, and the sender may be wrong")
    return RootCause(tuple(trouble.rank.rank for trouble in groups[0]))


_WITHOUT_ROOT = {
    Kind.FINDING: "all ranks passed, and a plugin looked at them together",
    Kind.MESSAGES: "of a sender and a receiver that differ, either may be wrong",
    Kind.DISAGREEMENT: "some ranks were skipped, and any of them may be right",
    Kind.FAILURE: "it follows from the failure of an earlier phase",
}
"""Why no rank is the root cause of a disagreement."""


def _culprits_first(
    outcome: RunOutcome, groups: Sequence[Sequence[RankFailure]]
) -> tuple[tuple[RankFailure, ...], ...]:
    """The groups with ranks that held up a test until its timeout first."""
    culprits = outcome.expiry.culprits if outcome.expiry is not None else ()

    def waited(group: Sequence[RankFailure]) -> bool:
        return not any(trouble.rank.rank in culprits for trouble in group)

    return tuple(map(tuple, sorted(groups, key=waited)))


def _kind(failure: Failure, groups: Sequence[Sequence[RankFailure]]) -> Kind:
    if not groups:
        return Kind.FAILURE if failure.disagreement is None else failure.disagreement.kind
    first, outcome = groups[0][0], failure.outcome
    if is_out_of_memory(first, outcome.oom):
        return Kind.OUT_OF_MEMORY
    if first.report is not None:
        return Kind.CRASH if first.child_crash is not None else Kind.FAILURE
    if first.stopped:
        return _kind_of_stop(outcome)
    if first.rank.ending is Ending.NOT_BEGUN:
        return Kind.NOT_BEGUN
    return Kind.EXIT if (first.rank.returncode or 0) >= 0 else Kind.CRASH


def _kind_of_stop(outcome: RunOutcome) -> Kind:
    if outcome.hang is not None:
        is_mismatch = outcome.hang.kind is HangKind.MISMATCH
        return Kind.MISMATCH if is_mismatch else Kind.DEADLOCK
    return Kind.STOPPED if outcome.timeout is None else Kind.TIMEOUT


# ------------------------------------------------------------------ code and hang


def _code(failure: Failure, kind: Kind, groups: Sequence[Sequence[RankFailure]]) -> str:
    if not groups:
        return "" if failure.disagreement is None else failure.disagreement.code
    hang = failure.outcome.hang
    match kind:
        case Kind.DEADLOCK | Kind.MISMATCH if hang is not None:
            return codes.OF_HANG[hang.kind]
        case Kind.TIMEOUT:
            return _code_of_timeout(failure, [t for group in groups for t in group])
        case Kind.STOPPED if failure.after is not None:
            return ""  # the first failure has one
        case Kind.CRASH | Kind.EXIT:
            return _code_of_end(groups[0][0])
        case Kind.FAILURE:
            return _code_of_exception(groups[0][0])
    return _CODES[kind]


_CODES = {
    Kind.OUT_OF_MEMORY: codes.OUT_OF_MEMORY,
    Kind.NOT_BEGUN: codes.NOT_BEGUN,
    Kind.STOPPED: codes.STOPPED,
}


def _code_of_timeout(failure: Failure, stopped: Sequence[RankFailure]) -> str:
    if any(trouble.is_importing for trouble in stopped):
        return codes.IMPORT
    rows = failure.outcome.expiry.table if failure.outcome.expiry is not None else ()
    makes_group = any(row.operation in _MAKING_GROUPS for row in rows)
    return codes.NEW_GROUP if makes_group else codes.TIMEOUT


_MAKING_GROUPS = ("new_group", "init_process_group")


def _code_of_end(first: RankFailure) -> str:
    if first.child_crash is not None:
        return codes.CHILD_DIED
    if is_gloo_mismatch(first.rank):
        return codes.GLOO_ABORTED
    returncode = first.rank.returncode or 0
    if returncode == EXIT_LINK_LOST or first.rank.problem:
        return codes.CHANNEL_LOST
    if returncode >= 0:
        return codes.EXITED
    return codes.KILLED if returncode == -signal.SIGKILL else codes.SIGNAL


def _code_of_exception(first: RankFailure) -> str:
    text = first_line(first.message)
    if text.startswith("assert "):
        return ""
    return (
        first.code or codes.of_message(text) or (codes.PEER_LOST if first.broken_connection else "")
    )


def _sole_hang(failure: Failure, groups: Sequence[Sequence[RankFailure]]) -> Hang | None:
    """The hang that is the whole verdict: no exception has led to it."""
    if not groups or not groups[0][0].stopped or verdict_prefix(_handled(failure)):
        return None
    return failure.outcome.hang


# ------------------------------------------------------------------ the verdict


def _verdict(failure: Failure, groups: Sequence[Sequence[RankFailure]]) -> str:
    if not groups:
        return failure.disagreement.verdict if failure.disagreement else "no rank ran the test"
    first = groups[0]
    if first[0].stopped:
        stopped = _stopped_verdict(failure, [t for group in groups for t in group])
        return verdict_prefix(_handled(failure)) + stopped
    label = ranks_text(t.rank.rank for t in first)
    # Without a colon the words are the predicate of a sentence.
    colon = ":" if first[0].report is not None or first[0].child_crash is not None else ""
    text = f"{label}{colon} {describe(first[0])}"
    rest = [t.rank.rank for group in groups[1:] for t in group]
    return f"{text} ({ranks_text(rest)} failed differently)" if rest else text


def _handled(failure: Failure) -> ByRank:
    by_rank = {t.rank.rank: t.handled for t in failure.troubles if t.stopped}
    return {rank.rank: by_rank.get(rank.rank) for rank in failure.outcome.ranks}


def _stopped_verdict(failure: Failure, stopped: Sequence[RankFailure]) -> str:
    if failure.outcome.hang is not None:
        return first_line(failure.outcome.hang.sentence)
    if failure.outcome.timeout is not None:
        seconds = f"after {failure.outcome.timeout:g} s"
        importing = [t.rank.rank for t in stopped if t.is_importing]
        if importing:
            file = failure.outcome.nodeid.partition("::")[0]
            return f"the import of {file} has not ended {seconds} on {ranks_text(importing)}"
        words = ", ".join(_unfinished(failure.outcome, stopped))
        return f"timed out {seconds}: {words}"
    parts = []
    for phase in Phase:
        if ranks := [t.rank.rank for t in stopped if t.phase is phase]:
            were = "were" if len(ranks) > 1 else "was"
            parts.append(f"{ranks_text(ranks)} {were} stopped in {phase}")
    after = "" if failure.after is None else f" after the failure in {failure.after}"
    return ", ".join(parts) + after


def _unfinished(outcome: RunOutcome, stopped: Sequence[RankFailure]) -> Iterator[str]:
    """Predicates for the ranks that a timeout stopped; first those that held up the others."""
    table = outcome.expiry.table if outcome.expiry is not None else ()
    states = {line.rank: line.state for line in table}
    waits = [t.rank.rank for t in stopped if states.get(t.rank.rank) == "waits"]
    if len(waits) == len(stopped):
        waits = []
    for phase in Phase:
        by_words: dict[tuple[str, str], list[int]] = {}
        for t in stopped:
            if t.phase is phase and t.rank.rank not in waits:
                words = _AT_TIMEOUT.get(states.get(t.rank.rank, ""), _UNFINISHED)
                by_words.setdefault(words, []).append(t.rank.rank)
        for words, ranks in by_words.items():
            yield f"{ranks_text(ranks)} {words[len(ranks) > 1]} {phase}"
    if waits:
        yield f"{ranks_text(waits)} {'wait' if len(waits) > 1 else 'waits'}"


_UNFINISHED = ("has not finished", "have not finished")
_AT_TIMEOUT = {
    "suspended": ("is suspended in", "are suspended in"),
    "silent": ("does not answer in", "do not answer in"),
}
"""Predicates by state: for one rank, and for several."""


def _place(failure: Failure, groups: Sequence[Sequence[RankFailure]]) -> tuple[str, int]:
    """Path and line for ``--tb=line`` and for editors."""
    if groups:
        first = groups[0][0]
        site = crash_site(first.report) if first.report is not None else None
        if site is not None:
            return site
        if (frame := first.user_frame) is not None:
            return frame.file, frame.line
    if not groups and failure.place is not None:
        return failure.place
    path, line, _ = failure.outcome.location
    return path, (line or 0) + 1


# ------------------------------------------------------------------ every rank


def _ranks(failure: Failure) -> Iterator[RankDiagnosis]:
    seen = failure.outcome.hang or failure.outcome.expiry
    lines = {line.rank: line for line in seen.table} if seen is not None else {}
    remarks = failure.outcome.expiry.remarks if failure.outcome.expiry is not None else {}
    # The earliest failure of each rank counts.
    first = {trouble.rank.rank: trouble for trouble in reversed(failure.troubles)}
    others = {other.rank: other for other in failure.others}
    for rank in failure.outcome.ranks:
        trouble, line = first.get(rank.rank), lines.get(rank.rank)
        if trouble is None:
            found = _untroubled(others.get(rank.rank) or UntroubledRank(rank.rank, "ended", ""))
        else:
            found = _troubled(trouble)
        # The failure of a rank is more informative than its row in the table.
        if line is not None and (trouble is None or trouble.stopped):
            found = _with_line(found, line)
        if rank.rank in remarks:
            found = replace(found, said=remarks[rank.rank])
        yield found


def _with_line(found: RankDiagnosis, line: RankLine) -> RankDiagnosis:
    """A rank's diagnosis with its row of the table of a hang or a timeout."""
    return replace(
        found,
        state=line.state,
        # The row of a rank that has never answered is empty.
        phase=line.phase if line.phase or line.state == "ended" else found.phase,
        collective=line.collective,
        group=line.group,
        number=line.number,
        place=line.place if line.place or line.state == "ended" else found.place,
    )


def _untroubled(other: UntroubledRank) -> RankDiagnosis:
    state, said = other.state, other.said
    return RankDiagnosis(other.rank, state, (), "", "", None, None, said, None, "", "", ())


def _troubled(trouble: RankFailure) -> RankDiagnosis:
    rank = trouble.rank
    returncode = rank.returncode if trouble.report is None else None
    by_signal = returncode is not None and returncode < 0
    return RankDiagnosis(
        rank=rank.rank,
        state=_state(trouble),
        phase=trouble.phases if trouble.report is None else (trouble.phase.value,),
        collective="",
        group="",
        number=None,
        place=_cleaned(trouble.place),
        said=clean(describe(trouble)),
        exit_code=None if by_signal else returncode,
        signal=signal_name(-returncode) if by_signal and returncode is not None else "",
        operator=stack_dumps.culprit(rank.native) if trouble.report is None else "",
        stack=frames_of(trouble),
        handling=clean(str(trouble.handled or "")),
    )


def _cleaned(place: CodeLine | None) -> CodeLine | None:
    if place is None:
        return None
    return replace(place, file=clean(place.file), function=clean(place.function))


def _state(trouble: RankFailure) -> str:
    if trouble.report is not None:
        return "failed"
    if trouble.rank.ending is Ending.EXITED:
        is_exit = trouble.rank.returncode is not None and trouble.rank.returncode >= 0
        return "exited" if is_exit else "died"
    return {Ending.STOPPED: "stopped", Ending.NOT_BEGUN: "not begun"}.get(
        trouble.rank.ending, "ended"
    )
