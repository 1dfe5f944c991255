"""Merges the reports of all ranks into the one report per phase that pytest sees.

Pure: a :class:`RunOutcome` in, :class:`pytest.TestReport` objects out. A test passes only if every
rank has delivered every report and was alive at the end; a missing report is a failure of its
phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import pytest

from pytest_ddp.asked.options import Output
from pytest_ddp.evidence.outcome import RankOutcome, RunOutcome
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.proof.compare import unequal_collectives
from pytest_ddp.verdict.diagnosis import Diagnosis, Failure, Kind, diagnose_failure
from pytest_ddp.verdict.entries import WIDE, WIDTH, lines_of
from pytest_ddp.verdict.failure import represent
from pytest_ddp.verdict.records import properties
from pytest_ddp.verdict.sections import sections_of
from pytest_ddp.verdict.states import Part, State, part_of, state_of
from pytest_ddp.verdict.trouble import Trouble, lost_phase, message_of, tell_apart
from pytest_ddp.wire.protocol import ERRORS, Phase

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
    ERRORS,
}
"""Attributes that the merge sets; other attributes of a report come from the user's hooks."""


_ALL_OR_NONE = "Skip on every rank or on none: a rank that stays may wait for one that left."
_SAME_COLLECTIVES = (
    "Every member of a group must issue the same collectives: the next one on this group would "
    "hang or pair up with the wrong data."
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a merged phase, and the reasons for it."""

    phase: Phase
    outcome: Result
    parts: tuple[Part, ...]
    troubles: tuple[Trouble, ...] = ()
    disagreement: str = ""
    """The verdict of a failure that belongs to no single rank."""
    advice: str = ""
    """How to fix the disagreement."""
    wasxfail: str | None = None
    stands_for_call: bool = False
    """True for a failed setup, after which some ranks may have gone on to their call."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged reports of a test, with their diagnoses."""

    reports: list[pytest.TestReport]
    """Setup, call and teardown, in order; no call unless setup passed."""
    diagnoses: tuple[Diagnosis, ...]
    """One for each failed report."""


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
    unequal = unequal_collectives(outcome) if outcome.check_collectives else ""
    unlike = tuple(filter(None, (unequal, outcome.mismatch)))
    outcome = replace(outcome, ranks=tuple(sorted(outcome.ranks, key=lambda rank: rank.rank)))
    decisions = _decide(outcome)
    if unlike:
        decisions = _with_unlike(decisions, unlike[0])
    notes = unlike
    reports: list[pytest.TestReport] = []
    diagnoses: list[Diagnosis] = []
    failing = _failing(outcome, decisions)
    for decision in decisions:
        notes = tuple(note for note in notes if note != decision.disagreement)
        if diagnoses and _have_lost_peers_alone(outcome, decision.troubles):
            decision = replace(decision, disagreement=_after(decision, diagnoses[0]))
        report, diagnosis = _judge(outcome, decision, notes, output, failing, width)
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
    parts = [part for rank in reported if (part := part_of(rank, Phase.CALL))]
    failed = _shown(part for part in parts if part.state is State.FAILED)
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
) -> tuple[pytest.TestReport, Diagnosis | None]:
    failure = _failure(outcome, decision, notes)
    diagnosis = diagnose_failure(failure) if decision.outcome == "failed" else None
    sections = sections_of(outcome, _covered(decision), output, failing)
    report = _report(outcome, decision, _longrepr(failure, decision, diagnosis), sections)
    if diagnosis is not None and width != WIDTH:
        vars(report)[WIDE] = lines_of(represent(failure, diagnosis, width))
    return report, diagnosis


# ------------------------------------------------------------------ one rank


def _troubles(rank: RankOutcome) -> Iterator[Trouble]:
    for phase in Phase:
        timed = rank.reports.get(phase)
        if timed is not None and state_of(timed.report) is State.FAILED:
            yield Trouble(rank, phase, timed.report)
    lost = lost_phase(rank)
    if lost is not None:
        yield Trouble(rank, lost, None)


# ------------------------------------------------------------------ all ranks


def _decide(outcome: RunOutcome) -> list[Decision]:
    ranks = outcome.ranks
    troubles = [trouble for rank in ranks for trouble in _troubles(rank)]
    setup = [part for rank in ranks if (part := part_of(rank, Phase.SETUP))]
    body = [part_of(part.rank, Phase.CALL) or part for part in setup]
    teardown = [part for rank in ranks if (part := part_of(rank, Phase.TEARDOWN))]
    early = [trouble for trouble in troubles if trouble.phase is not Phase.TEARDOWN]
    late = [trouble for trouble in troubles if trouble.phase is Phase.TEARDOWN]
    if early:
        # A rank that died after its last report caused the failures of its peers.
        after = [trouble for trouble in late if trouble.is_after_all_reports]
        early += after
        late = [trouble for trouble in late if trouble not in after]
    last = _combine(Phase.TEARDOWN, teardown, late)
    states = {part.state for part in setup}
    if not ranks or states & {State.FAILED, State.LOST}:
        failed = Decision(Phase.SETUP, "failed", tuple(body), tuple(early), stands_for_call=True)
        return [failed, last]
    if State.PASSED not in states or any(rank.setup_only for rank in ranks):
        return [_combine(Phase.SETUP, setup, early), last]
    # A rank that was skipped in setup while others went on belongs to the call's verdict.
    passed = Decision(Phase.SETUP, "passed", tuple(setup))
    return [passed, _combine(Phase.CALL, body, early), last]


def _combine(phase: Phase, parts: Sequence[Part], troubles: Sequence[Trouble]) -> Decision:
    by_state: dict[State, list[Part]] = {}
    for part in parts:
        by_state.setdefault(part.state, []).append(part)
    merged = Decision(phase, "passed", tuple(parts))
    skipped = by_state.get(State.SKIPPED, [])
    if troubles:
        return replace(merged, outcome="failed", troubles=tuple(troubles))
    if skipped and len({(part.state, part.reason) for part in parts}) > 1:
        words = _disagreement(parts)
        return replace(merged, outcome="failed", disagreement=words, advice=_ALL_OR_NONE)
    if skipped:
        return replace(merged, outcome="skipped")
    if expected := by_state.get(State.XFAILED):
        return replace(
            merged, outcome="skipped", wasxfail=_xfail_reason(expected), troubles=_shown(expected)
        )
    if strict := by_state.get(State.XPASSED_STRICT):
        return replace(merged, outcome="failed", troubles=_shown(strict))
    if unexpected := by_state.get(State.XPASSED):
        return replace(merged, wasxfail=_xfail_reason(unexpected))
    return merged


def _shown(parts: Iterable[Part]) -> tuple[Trouble, ...]:
    return tuple(Trouble(part.rank, part.phase, part.report) for part in parts)


def _xfail_reason(parts: Sequence[Part]) -> str:
    reasons: dict[str, list[int]] = {}
    for part in parts:
        reasons.setdefault(part.expectation, []).append(part.rank.rank)
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{ranks_text(ranks)}: {reason}" for reason, ranks in reasons.items())


def _disagreement(parts: Sequence[Part]) -> str:
    by_words: dict[str, list[int]] = {}
    for part in sorted(parts, key=lambda part: part.state is not State.SKIPPED):
        by_words.setdefault(str(part), []).append(part.rank.rank)
    listed = ", ".join(f"{ranks_text(ranks)} {words}" for words, ranks in by_words.items())
    return f"ranks disagree: {listed}"


def _have_lost_peers_alone(outcome: RunOutcome, troubles: Sequence[Trouble]) -> bool:
    """Whether failures of a later phase are mere consequences of the earlier one."""
    was_proved = outcome.hang is not None or outcome.timeout is not None
    return any(trouble.broken_connection for trouble in troubles) and all(
        trouble.handled is None and (trouble.broken_connection or trouble.stopped > was_proved)
        for trouble in troubles
    )


def _after(decision: Decision, earlier: Diagnosis) -> str:
    ranks = ranks_text(trouble.rank.rank for trouble in decision.troubles)
    return f"{ranks} could not go on in {decision.phase} after the failure in {earlier.phase}"


# ------------------------------------------------------------------ collectives


def _with_unlike(decisions: Sequence[Decision], unlike: str) -> list[Decision]:
    """Fail the test's body because collectives differ, unless something failed already.

    If every rank passed although it was expected to fail, this is the expected failure.
    """
    *before, body, teardown = decisions
    states = {part.state for part in body.parts}
    surprised = bool(states) and states <= {State.XPASSED, State.XPASSED_STRICT}
    failed = any(decision.outcome == "failed" for decision in (*before, teardown))
    settled = body.outcome == "failed" or (body.outcome == "skipped" and body.wasxfail is not None)
    if failed or (settled and not surprised):
        return list(decisions)
    blamed = replace(body, outcome="failed", wasxfail=None)
    blamed = replace(blamed, disagreement=unlike, advice=_SAME_COLLECTIVES)
    if surprised:
        reason = _xfail_reason(body.parts)
        blamed = replace(blamed, outcome="skipped", wasxfail=reason, troubles=())
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


def _longrepr(failure: Failure, decision: Decision, diagnosis: Diagnosis | None) -> Any:
    if decision.outcome == "passed":
        return None
    if decision.outcome == "skipped" and decision.wasxfail is None:
        return _skip_place(failure.outcome, decision.parts[0])
    return represent(failure, diagnosis or diagnose_failure(failure))


def _failure(outcome: RunOutcome, decision: Decision, notes: tuple[str, ...]) -> Failure:
    troubled = {trouble.rank.rank for trouble in decision.troubles}
    # A disagreement names all ranks in its verdict.
    names_all = decision.advice == _ALL_OR_NONE
    others = [part for part in decision.parts if part.rank.rank not in troubled and not names_all]
    skips = [part for part in decision.parts if part.state is State.SKIPPED]
    return Failure(
        outcome=outcome,
        phase=decision.phase,
        troubles=decision.troubles,
        disagreement=decision.disagreement,
        kind=_kind(decision),
        place=_skip_place(outcome, skips[0])[:2] if skips else None,
        others=tuple((part.rank.rank, str(part)) for part in others),
        notes=(decision.advice, *notes) if decision.advice else notes,
    )


def _kind(decision: Decision) -> Kind:
    if decision.troubles:
        return Kind.FAILURE
    return Kind.DISAGREEMENT if decision.advice == _ALL_OR_NONE else Kind.COLLECTIVES


def _skip_place(outcome: RunOutcome, part: Part) -> tuple[str, int, str]:
    longrepr = part.report.longrepr if part.report is not None else None
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
        for trouble in tell_apart(decision.troubles, outcome)[0]
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
