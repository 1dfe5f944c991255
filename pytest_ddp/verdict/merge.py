"""Merges the reports of all ranks into the one report per phase that pytest sees.

Pure: a :class:`RunOutcome` in, :class:`pytest.TestReport` objects out. A test passes only if every
rank has delivered every report and was alive at the end; a missing report is a failure of its
phase.
"""

from __future__ import annotations

import copy
import enum
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import pytest

from pytest_ddp.deadlock.collectives import unequal_collectives
from pytest_ddp.outcome.outcome import Ending, RankOutcome, RunOutcome, TimedReport, ranks_text
from pytest_ddp.protocol.buffered_reports import is_empty
from pytest_ddp.protocol.messages import CODE, ERRORS, EXPECTS_OTHER, Phase
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict import codes
from pytest_ddp.verdict.diagnosis import (
    Diagnosis,
    Disagreement,
    Failure,
    Kind,
    UntroubledRank,
    diagnose_failure,
)
from pytest_ddp.verdict.diagnosis_files import properties
from pytest_ddp.verdict.rank_failure import (
    RankFailure,
    clean,
    lost_phase,
    message_of,
    split_consequences,
)
from pytest_ddp.verdict.representation import MARKS, WIDE, WIDTH, finding_text, lines_of
from pytest_ddp.verdict.text import represent

# ------------------------------------------------------------------
# The result of a phase on one rank in pytest's terms: passed, skipped, xfailed ...; or lost.

_STRICT = "[XPASS(strict)]"
_UNEXPECTED_SUCCESS = ("Unexpected success", "Failed: Unexpected success")
"""Messages of ``unittest.expectedFailure``, which has no marker for a strict XPASS."""


class PhaseState(enum.Enum):
    """The result of a phase on one rank; the value is the predicate of a sentence on the rank."""

    PASSED = "passed"
    XPASSED = "passed, although expected to fail"
    XPASSED_STRICT = "passed, although it must fail"
    XFAILED = "failed as expected"
    SKIPPED = "skipped"
    FAILED = "failed"
    LOST = "did not report"


@dataclass(frozen=True, slots=True)
class RankPhase:
    """One phase on one rank."""

    rank: RankOutcome
    phase: Phase
    state: PhaseState
    report: pytest.TestReport | None

    @property
    def reason(self) -> str:
        """Why the rank was skipped, or why a failure was expected; empty for other states."""
        if self.state is PhaseState.SKIPPED and self.report is not None:
            return message_of(self.report.longrepr).removeprefix("Skipped: ")
        return self.expectation.removeprefix("reason: ")

    @property
    def expectation(self) -> str:
        """pytest's ``wasxfail``: the reason of the mark or the call; empty without one."""
        if self.state is PhaseState.XPASSED_STRICT and self.report is not None:
            message = message_of(self.report.longrepr)
            return "" if message in _UNEXPECTED_SUCCESS else message.removeprefix(_STRICT).strip()
        return str(getattr(self.report, "wasxfail", ""))

    def __str__(self) -> str:
        return f"{self.state.value} ({self.reason})" if self.reason else self.state.value


def state_of(report: pytest.TestReport) -> PhaseState:
    """The meaning of the report's outcome together with its attribute ``wasxfail``."""
    expected = hasattr(report, "wasxfail")
    if report.passed:
        return PhaseState.XPASSED if expected else PhaseState.PASSED
    if report.skipped:
        return PhaseState.XFAILED if expected else PhaseState.SKIPPED
    message = message_of(report.longrepr)
    if message.startswith(_STRICT) or message in _UNEXPECTED_SUCCESS:
        return PhaseState.XPASSED_STRICT
    return PhaseState.FAILED


def rank_phase_of(rank: RankOutcome, phase: Phase) -> RankPhase | None:
    """The phase on a rank; None if it neither reported nor owes a report."""
    timed = rank.reports.get(phase)
    if timed is not None:
        return RankPhase(rank, phase, state_of(timed.report), timed.report)
    return RankPhase(rank, phase, PhaseState.LOST, None) if lost_phase(rank) is phase else None


# ------------------------------------------------------------------
# The captured output of all ranks as the sections of one report.

_PHASE_TITLES = tuple(Phase)


def sections_of(
    outcome: RunOutcome, phases: tuple[Phase, ...], output: Output, failing: frozenset[int]
) -> list[tuple[str, str]]:
    """Titles such as ``Captured stdout call [ranks 0-2]`` with their text, uncut.

    Args:
        outcome: with its ranks in order.
        phases: the phases of the merged report, in order: its own, and the call too if that has
            no report. As in pytest, output of earlier phases is repeated.
        failing: the ranks that ``Output.FAILED`` selects; empty selects every rank, since pytest
            prints the output of a passed test only on request (``-rP``).
    """
    found: dict[tuple[str, int, str], list[int]] = {}
    for rank in outcome.ranks:
        if not _chosen(rank.rank, output, failing):
            continue
        times: Counter[str] = Counter()
        for title, text in _rank_sections(rank, phases):
            found.setdefault((title, times[title], text), []).append(rank.rank)
            times[title] += 1
    # Sorting is stable: within a phase the order is that of the first rank.
    ordered = sorted(found.items(), key=lambda item: _phase_number(item[0][0]))
    return [(f"{title} [{ranks_text(ranks)}]", text) for (title, _, text), ranks in ordered]


def _chosen(rank: int, output: Output, failing: frozenset[int]) -> bool:
    if output is Output.RANK0:
        return rank == 0
    return output is Output.ALL or not failing or rank in failing


def _rank_sections(rank: RankOutcome, phases: tuple[Phase, ...]) -> list[tuple[str, str]]:
    report = _latest(rank, phases[-1])
    sections = [(str(title), clean(str(text))) for title, text in report.sections] if report else []
    left = lost_phase(rank) or Phase.TEARDOWN
    if left in phases:
        for name, text in (("stdout", rank.stdout), ("stderr", rank.stderr)):
            if text:
                sections.append((f"Captured {name} {left}", clean(text)))
    return sections


def _latest(rank: RankOutcome, phase: Phase) -> pytest.TestReport | None:
    """The rank's report of the phase, or of the one before for a rank that has none."""
    upto = _PHASE_TITLES.index(phase) + 1
    for earlier in reversed(_PHASE_TITLES[:upto]):
        if earlier in rank.reports:
            return rank.reports[earlier].report
    return None


def _phase_number(title: str) -> int:
    word = title.rpartition(" ")[2]
    return next(
        (number for number, phase in enumerate(_PHASE_TITLES) if phase == word), len(_PHASE_TITLES)
    )


Result: TypeAlias = Literal["passed", "failed", "skipped"]

_OWN_ATTRIBUTES = {
    "_id",
    "nodeid",
    "location",
    "keywords",
    "outcome",
    "longrepr",
    "when",
    "sections",
    "duration",
    "start",
    "stop",
    "user_properties",
    "wasxfail",
    CODE,
    ERRORS,
    EXPECTS_OTHER,
}
"""Attributes that the merge sets; other attributes of a report come from the user's hooks."""


_ALL_OR_NONE = "Skip on every rank or on none: a rank that stays may wait for one that left."
_SAME_COLLECTIVES = (
    "Every member of a group must issue the same collectives: the next one on this group would "
    "hang or pair up with the wrong data."
)
_SAME_DTYPE = (
    "gloo compares bytes alone, so that the receiver takes them for values of its own dtype. "
    "Receive into a tensor of the dtype that was sent."
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a merged phase, and the reasons for it."""

    phase: Phase
    outcome: Result
    parts: tuple[RankPhase, ...]
    troubles: tuple[RankFailure, ...] = ()
    disagreement: Disagreement | None = None
    """Why the phase failed, if it did on no single rank."""
    wasxfail: str | None = None
    stands_for_call: bool = False
    """True for a failed setup, after which some ranks may have gone on to their call."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged reports of a test, with their diagnoses."""

    reports: list[pytest.TestReport]
    """Setup, call and teardown, in order; no call unless setup passed."""
    diagnoses: tuple[Diagnosis, ...]
    """A diagnosis for each failed report."""


def merge(outcome: RunOutcome, output: Output) -> list[pytest.TestReport]:
    """The reports of setup, call and teardown, in order; no call unless setup passed."""
    return judge(outcome, output).reports


def judge(outcome: RunOutcome, output: Output, width: int = WIDTH) -> Merged:
    """The reports of a test, and the diagnoses of those that failed.

    Args:
        outcome: the record of the test.
        output: the ranks whose captured output is shown.
        width: columns of the terminal.
    """
    unlike = tuple(_unlike(outcome))
    shown_together = unlike or tuple(_found(outcome))
    outcome = replace(outcome, ranks=tuple(sorted(outcome.ranks, key=lambda rank: rank.rank)))
    decisions = _decide(outcome)
    if shown_together:
        decisions = _blamed(decisions, shown_together[0])
    notes = tuple(one.text for one in unlike)
    reports: list[pytest.TestReport] = []
    diagnoses: list[Diagnosis] = []
    failing = _failing(outcome, decisions)
    for decision in decisions:
        if decision.disagreement is not None:
            notes = tuple(note for note in notes if note != decision.disagreement.text)
        if diagnoses and _have_lost_peers_alone(outcome, decision.troubles):
            decision = replace(decision, disagreement=_after(decision, diagnoses[0]))
        first = diagnoses[0].phase if diagnoses else None
        report, diagnosis = _judge(outcome, decision, notes, output, failing, width, first)
        if diagnosis is not None:
            diagnoses.append(diagnosis)
            notes = (f"{decision.phase} had failed before: {diagnosis.verdict}",)
        # junitxml takes a test's properties from its last report, and does not merge equal names:
        # each report gets those of the first failure.
        report.user_properties += properties(diagnoses[0]) if diagnoses else []
        reports.append(report)
    return Merged(reports, tuple(diagnoses))


def judge_call(outcome: RunOutcome, output: Output, width: int) -> Merged:
    """The merged report of the call, from the ranks that have reported it."""
    reported = (rank for rank in outcome.ranks if Phase.CALL in rank.reports)
    parts = [part for rank in reported if (part := rank_phase_of(rank, Phase.CALL))]
    failed = _shown(part for part in parts if part.state is PhaseState.FAILED)
    decision = _combine(Phase.CALL, parts, failed)
    failing = _failing(outcome, [decision])
    report, diagnosis = _judge(outcome, decision, (), output, failing, width)
    return Merged([report], () if diagnosis is None else (diagnosis,))


def _judge(
    outcome: RunOutcome,
    decision: Decision,
    notes: tuple[str, ...],
    output: Output,
    failing: frozenset[int],
    width: int,
    after: Phase | None = None,
) -> tuple[pytest.TestReport, Diagnosis | None]:
    failure = _failure(outcome, decision, notes, after)
    diagnosis = diagnose_failure(failure) if decision.outcome == "failed" else None
    sections = sections_of(outcome, _covered(decision), output, failing)
    longrepr, marks = _longrepr(failure, decision, diagnosis)
    report = _report(outcome, decision, longrepr, sections)
    if diagnosis is not None and width != WIDTH:
        wide, marks = represent(failure, diagnosis, width)
        vars(report)[WIDE] = lines_of(wide)
    if diagnosis is not None and marks:
        vars(report)[MARKS] = marks
    return report, diagnosis


# ------------------------------------------------------------------ one rank


def _troubles(rank: RankOutcome) -> Iterator[RankFailure]:
    for phase in Phase:
        timed = rank.reports.get(phase)
        if timed is not None and state_of(timed.report) is PhaseState.FAILED:
            yield RankFailure(rank, phase, timed.report)
    lost = lost_phase(rank)
    if lost is not None:
        yield RankFailure(rank, lost, None)


# ------------------------------------------------------------------ all ranks


def _decide(outcome: RunOutcome) -> list[Decision]:
    ranks = outcome.ranks
    troubles = [trouble for rank in ranks for trouble in _troubles(rank)]
    setup = [part for rank in ranks if (part := rank_phase_of(rank, Phase.SETUP))]
    body = [rank_phase_of(part.rank, Phase.CALL) or part for part in setup]
    teardown = [part for rank in ranks if (part := rank_phase_of(rank, Phase.TEARDOWN))]
    early = [trouble for trouble in troubles if trouble.phase is not Phase.TEARDOWN]
    late = [trouble for trouble in troubles if trouble.phase is Phase.TEARDOWN]
    if early:
        # A rank that died after its last report caused the failures of its peers.
        after = [trouble for trouble in late if trouble.is_after_all_reports]
        early += after
        late = [trouble for trouble in late if trouble not in after]
    last = _combine(Phase.TEARDOWN, teardown, late)
    states = {part.state for part in setup}
    if not ranks or states & {PhaseState.FAILED, PhaseState.LOST}:
        failed = Decision(Phase.SETUP, "failed", tuple(body), tuple(early), stands_for_call=True)
        return [failed, last]
    if PhaseState.PASSED not in states or any(rank.setup_only for rank in ranks):
        return [_combine(Phase.SETUP, setup, early), last]
    # A rank that was skipped in setup while others went on belongs to the call's verdict.
    passed = Decision(Phase.SETUP, "passed", tuple(setup))
    return [passed, _combine(Phase.CALL, body, early), last]


def _combine(
    phase: Phase, rank_phases: Sequence[RankPhase], troubles: Sequence[RankFailure]
) -> Decision:
    by_state: dict[PhaseState, list[RankPhase]] = {}
    for part in rank_phases:
        by_state.setdefault(part.state, []).append(part)
    merged = Decision(phase, "passed", tuple(rank_phases))
    skipped = by_state.get(PhaseState.SKIPPED, [])
    if troubles:
        return replace(merged, outcome="failed", troubles=tuple(troubles))
    if skipped and len({(part.state, part.reason) for part in rank_phases}) > 1:
        return replace(merged, outcome="failed", disagreement=_disagreement(rank_phases))
    if skipped:
        return replace(merged, outcome="skipped")
    if expected := by_state.get(PhaseState.XFAILED):
        return replace(
            merged, outcome="skipped", wasxfail=_xfail_reason(expected), troubles=_shown(expected)
        )
    if strict := by_state.get(PhaseState.XPASSED_STRICT):
        return replace(merged, outcome="failed", troubles=_shown(strict))
    if unexpected := by_state.get(PhaseState.XPASSED):
        return replace(merged, wasxfail=_xfail_reason(unexpected))
    return merged


def _shown(rank_phases: Iterable[RankPhase]) -> tuple[RankFailure, ...]:
    return tuple(RankFailure(part.rank, part.phase, part.report) for part in rank_phases)


def _xfail_reason(rank_phases: Sequence[RankPhase]) -> str:
    reasons: dict[str, list[int]] = {}
    for part in rank_phases:
        reasons.setdefault(part.expectation, []).append(part.rank.rank)
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{ranks_text(ranks)}: {reason}" for reason, ranks in reasons.items())


def _disagreement(rank_phases: Sequence[RankPhase]) -> Disagreement:
    by_words: dict[str, list[int]] = {}
    for part in sorted(rank_phases, key=lambda part: part.state is not PhaseState.SKIPPED):
        by_words.setdefault(str(part), []).append(part.rank.rank)
    listed = ", ".join(f"{ranks_text(ranks)} {words}" for words, ranks in by_words.items())
    text = f"ranks disagree: {listed}"
    return Disagreement(Kind.DISAGREEMENT, text, codes.DISAGREE, _ALL_OR_NONE)


def _have_lost_peers_alone(outcome: RunOutcome, troubles: Sequence[RankFailure]) -> bool:
    """Whether failures of a later phase are mere consequences of the earlier one."""
    was_proved = outcome.hang is not None or outcome.timeout is not None
    return any(trouble.broken_connection for trouble in troubles) and all(
        trouble.handled is None and (trouble.broken_connection or trouble.stopped > was_proved)
        for trouble in troubles
    )


def _after(decision: Decision, earlier: Diagnosis) -> Disagreement:
    ranks = ranks_text(trouble.rank.rank for trouble in decision.troubles)
    text = f"{ranks} could not go on in {decision.phase} after the failure in {earlier.phase}"
    return Disagreement(Kind.FAILURE, text)


# ------------------------------------------------------------------ after the ranks have ended


def _unlike(outcome: RunOutcome) -> Iterator[Disagreement]:
    """What the ranks communicated differently; the first one is the verdict."""
    kind = Kind.COLLECTIVES
    if outcome.check_collectives and (text := unequal_collectives(outcome)):
        yield Disagreement(kind, text, codes.UNEQUAL_NUMBER, _SAME_COLLECTIVES)
    if outcome.mismatch:
        yield Disagreement(kind, outcome.mismatch, codes.UNLIKE, _SAME_COLLECTIVES)
    if outcome.unlike_message:
        text = outcome.unlike_message
        yield Disagreement(Kind.MESSAGES, text, codes.UNLIKE_MESSAGES, _SAME_DTYPE)


def _found(outcome: RunOutcome) -> Iterator[Disagreement]:
    """What plugins have found, as one."""
    if not outcome.findings:
        return
    texts = (
        "\n\n".join(one if isinstance(one, str) else finding_text(one) for one in of_plugin)
        for of_plugin in outcome.findings
    )
    first = outcome.findings[0][0]
    yield Disagreement(Kind.FINDING, "\n".join(texts), "" if isinstance(first, str) else first.code)


def _blamed(decisions: Sequence[Decision], disagreement: Disagreement) -> list[Decision]:
    """Fail the test's body for what all ranks together show, unless something failed already.

    If every rank passed although it was expected to fail, this is the expected failure, unless the
    test expects another exception than that of :func:`pytest.fail`.
    """
    *before, body, teardown = decisions
    states = {part.state for part in body.parts}
    surprised = bool(states) and states <= {PhaseState.XPASSED, PhaseState.XPASSED_STRICT}
    failed = any(decision.outcome == "failed" for decision in (*before, teardown))
    settled = body.outcome == "failed" or (
        body.outcome == "skipped"
        and (body.wasxfail is not None or disagreement.kind is Kind.FINDING)
    )
    if failed or (settled and not surprised):
        return list(decisions)
    blamed = replace(body, outcome="failed", wasxfail=None, troubles=(), disagreement=disagreement)
    if surprised and not any(hasattr(part.report, EXPECTS_OTHER) for part in body.parts):
        blamed = replace(blamed, outcome="skipped", wasxfail=_xfail_reason(body.parts))
    return [*before, blamed, teardown]


# ------------------------------------------------------------------ the report


def _report(
    outcome: RunOutcome,
    decision: Decision,
    longrepr: Any,
    sections: list[tuple[str, str]],
) -> pytest.TestReport:
    start, stop, duration = _times(outcome, decision.phase)
    report = pytest.TestReport(
        nodeid=outcome.nodeid,
        location=outcome.location,
        keywords=cast("dict[str, Literal[1]]", outcome.keywords),
        outcome=decision.outcome,
        longrepr=longrepr,
        when=decision.phase.value,
        sections=sections,
        duration=duration,
        start=start,
        stop=stop,
        user_properties=_user_properties(outcome, decision.phase),
        **_extras(outcome, decision.phase),
    )
    if decision.wasxfail is not None:
        report.wasxfail = decision.wasxfail
    return report


def _longrepr(
    failure: Failure, decision: Decision, diagnosis: Diagnosis | None
) -> tuple[Any, list[tuple[int, int, int, str]]]:
    if decision.outcome == "passed":
        return None, []
    if decision.outcome == "skipped" and decision.wasxfail is None:
        return _skip_place(failure.outcome, decision.parts[0]), []
    return represent(failure, diagnosis or diagnose_failure(failure))


def _failure(
    outcome: RunOutcome, decision: Decision, notes: tuple[str, ...], after: Phase | None
) -> Failure:
    troubled = {trouble.rank.rank for trouble in decision.troubles}
    disagreement = decision.disagreement
    if disagreement is not None and disagreement.advice:
        notes = (disagreement.advice, *notes)
    others = [part for part in decision.parts if part.rank.rank not in troubled]
    if disagreement is not None and disagreement.names_ranks:
        others = []
    skips = [part for part in decision.parts if part.state is PhaseState.SKIPPED]
    return Failure(
        outcome=outcome,
        phase=decision.phase,
        troubles=decision.troubles,
        disagreement=disagreement,
        place=_skip_place(outcome, skips[0])[:2] if skips else None,
        others=tuple(UntroubledRank(p.rank.rank, p.state.value, str(p)) for p in others),
        notes=notes,
        after=after,
    )


def _skip_place(outcome: RunOutcome, rank_phase: RankPhase) -> tuple[str, int, str]:
    longrepr = rank_phase.report.longrepr if rank_phase.report is not None else None
    if isinstance(longrepr, (tuple, list)) and len(longrepr) == 3:
        path, line, reason = longrepr
        return str(path), int(line), str(reason)
    path, start, _ = outcome.location
    return path, (start or 0) + 1, message_of(longrepr)


def _failing(outcome: RunOutcome, decisions: Iterable[Decision]) -> frozenset[int]:
    """The ranks with an original failure, not a mere consequence of another one."""
    return frozenset(
        trouble.rank.rank
        for decision in decisions
        if decision.outcome == "failed"
        for trouble in split_consequences(decision.troubles, outcome)[0]
    )


def _covered(decision: Decision) -> tuple[Phase, ...]:
    return (decision.phase, Phase.CALL) if decision.stands_for_call else (decision.phase,)


def _phase_reports(outcome: RunOutcome, phase: Phase) -> list[pytest.TestReport]:
    return [rank.reports[phase].report for rank in outcome.ranks if phase in rank.reports]


def _times(outcome: RunOutcome, phase: Phase) -> tuple[float, float, float]:
    """Start and stop in seconds since the epoch, and the duration in seconds."""
    # A report that the rank made for an interrupt has no times.
    reports = [report for report in _phase_reports(outcome, phase) if report.start > 0]
    starts = [report.start for report in reports]
    stops = [report.stop for report in reports]
    durations = [report.duration for report in reports]
    for rank in outcome.ranks:
        if lost_phase(rank) is phase and phase not in rank.reports:
            since = max((timed.at for timed in rank.reports.values()), default=0.0)
            starts.append(outcome.start + since)
            stops.append(outcome.start + max(since, rank.at))
            durations.append(max(0.0, rank.at - since))
    start = min(starts, default=outcome.start + outcome.duration)
    return start, max(stops, default=start), max(durations, default=0.0)


def _user_properties(outcome: RunOutcome, phase: Phase) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for report in _phase_reports(outcome, phase):
        properties = [(str(name), value) for name, value in report.user_properties]
        # Not a set: values may be unhashable.
        found += [item for item in properties if item not in found]
    return found


def _extras(outcome: RunOutcome, phase: Phase) -> dict[str, Any]:
    """Attributes that the user's hooks set on reports; the lowest rank's value wins."""
    extras: dict[str, Any] = {}
    for report in reversed(_phase_reports(outcome, phase)):
        extras |= {k: v for k, v in vars(report).items() if k not in _OWN_ATTRIBUTES}
    return extras


# ------------------------------------------------------------------
# The subtests of all ranks, which are reported before the call, as in pytest.


_Reported: TypeAlias = tuple[RankOutcome, TimedReport]


def with_subtests(
    outcome: RunOutcome, merged: Merged, output: Output, width: int = WIDTH
) -> Merged:
    """The reports of a test with those of its subtests, whose failures come first.

    Subtests of ranks are the same if they have the same message and parameters. A subtest that only
    some ranks have is no failure: ranks may test different things.
    """
    if not any(rank.subtests for rank in outcome.ranks):
        return merged
    judged = [_judge_subtests(outcome, same, output, width) for same in _same(outcome.ranks)]
    setup = list(itertools.takewhile(lambda report: report.when == "setup", merged.reports))
    reports = [report for each in judged for report in each.reports]
    diagnoses = [diagnosis for each in judged for diagnosis in each.diagnoses]
    return Merged(
        [*setup, *reports, *merged.reports[len(setup) :]], (*diagnoses, *merged.diagnoses)
    )


def _same(ranks: Iterable[RankOutcome]) -> Iterator[list[_Reported]]:
    """The subtests of all ranks, same ones together, in the order of the first rank with them."""
    found: dict[object, list[_Reported]] = {}
    for rank in ranks:
        times: Counter[object] = Counter()
        for timed in rank.subtests:
            name = _name(timed.report)
            found.setdefault((name, times[name]), []).append((rank, timed))
            times[name] += 1
    return iter(found.values())


def _name(report: Any) -> object:
    return report.context.msg, tuple(report.context.kwargs.items())


def _judge_subtests(
    outcome: RunOutcome, same: list[_Reported], output: Output, width: int
) -> Merged:
    reports = [timed.report for _, timed in same]
    merged = copy.copy(reports[0])
    if all(map(is_empty, reports)):
        merged.start = min(report.start for report in reports)
        merged.stop = max(report.stop for report in reports)
        merged.duration = max(report.duration for report in reports)
        return Merged([merged], ())
    judged = judge_call(_as_call(outcome, same), output, width)
    vars(merged).pop("wasxfail", None)
    # Keeps the class, by which pytest and its plugins recognise subtests.
    vars(merged).update(vars(judged.reports[0]))
    return Merged([merged], judged.diagnoses)


def _as_call(outcome: RunOutcome, same: list[_Reported]) -> RunOutcome:
    """A record in which this subtest is the call, with the ranks that have ended it."""
    by_rank = {rank.rank: timed for rank, timed in same}
    ranks = (
        RankOutcome(
            rank=rank.rank,
            ending=Ending.DONE,
            at=rank.at,
            reports=dict.fromkeys(Phase, by_rank[rank.rank]) if rank.rank in by_rank else {},
        )
        for rank in outcome.ranks
    )
    return RunOutcome(
        nodeid=outcome.nodeid,
        location=outcome.location,
        keywords=outcome.keywords,
        backend=outcome.backend,
        ranks=tuple(ranks),
        start=outcome.start,
        duration=outcome.duration,
    )
