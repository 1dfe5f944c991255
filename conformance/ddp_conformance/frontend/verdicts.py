"""What a test of a check decides, and its verdict, from the test's report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from ddp_conformance.framework.mutants import Mutant
from ddp_conformance.framework.registry import remarked
from ddp_conformance.framework.verdict import EVIDENCE as EVIDENCE
from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError
from ddp_conformance.frontend.pytest_frontend import BoundCheck, KeptError
from ddp_conformance.frontend.report import Judged, Kill
from ddp_conformance.frontend.table import Word

SYSTEM = "conformance system"
"""User property of a test, which a conftest file may set: the system that its part belongs to."""

REMARK = "conformance remark"
"""User property: what a check that passed could not examine."""

About: TypeAlias = Mapping[str, Any]
"""What a test decides: the first fields of a :class:`Judged`, and what its words depend on."""


def decided_by(item: pytest.Item) -> About | None:
    """What a test decides; None for one that neither calls a check nor tries a mutant."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    mutant = params.get("mutant")
    if isinstance(mutant, Mutant):
        return {
            "mutant": mutant.subject.name,
            "defect": mutant.defect,
            "guarantee": mutant.guarantee,
            "world_size": params.get("_ddp_world_size") or next(_world_sizes(item)),
            "obstacle": None,
        }
    check, subject = params.get("check"), params.get("subject")
    if not isinstance(check, BoundCheck) or subject is None:
        return None
    return {
        "subject": subject.name,
        "kind": subject.kind,
        "guarantee": check.id,
        "world_size": params.get("_ddp_world_size") or next(_world_sizes(item)),
        "remark": check.check.remark(subject),
        "obstacle": check.check.obstacle(subject),
        "system": dict(item.user_properties).get(SYSTEM, ""),
    }


def remark(item: pytest.Item) -> str:
    """What the check of this test could not examine, as it remarked while it ran; or nothing."""
    return remarked() if decided_by(item) is not None else ""


def _world_sizes(item: pytest.Item) -> Iterator[int]:
    for mark in item.iter_markers("ddp"):
        if "world_size" in mark.kwargs:
            yield mark.kwargs["world_size"]
    yield 1


def not_bound(
    decided: Mapping[str, About], items: Sequence[pytest.Item], config: pytest.Config
) -> list[pytest.Item]:
    """The tests to be deselected, because their subject's traits exclude the guarantee.

    A test that the command line names is skipped instead, with the reason. So are all of them where
    no other test is left, since pytest takes a run without tests for an error.
    """
    excluded = [
        item
        for item in items
        if (about := decided.get(item.nodeid)) is not None
        and about["obstacle"] is not None
        and not _is_named(item, about["guarantee"], config)
    ]
    return excluded if len(excluded) < len(items) else []


def _is_named(item: pytest.Item, guarantee_id: str, config: pytest.Config) -> bool:
    """Whether ``-k`` names its guarantee, or an argument is its node id."""
    keywords = (config.getoption("keyword", "") or "").casefold()
    named = any(str(argument).endswith(f"::{item.name}") for argument in config.args)
    return named or guarantee_id.casefold() in keywords


def ending(error: BaseException) -> list[str]:
    """How a check ended, in a word, and the lines that prove it; empty if it did not raise this."""
    # An expected failure is an xfail that was raised for the violation. Exactly these types:
    # exceptions of user code that derive from them are no verdicts.
    for one in (error, error.__context__):
        if type(one) in _ENDINGS:
            return [_ENDINGS[type(one)], *getattr(one, "evidence", ())]
    return []


_ENDINGS: dict[type, str] = {
    GuaranteeError: "violated",
    UndecidedError: "undecided",
    KeptError: "kept",
}


def excused(about: About) -> Judged:
    """The verdict of a test that was deselected."""
    return _judged(about, Word.NOT_BOUND, about["obstacle"])


def kill(report: pytest.TestReport, about: About) -> Kill:
    """The verdict on a mutant, from the decisive report of its test."""
    lived = Word.SKIPPED if report.skipped else Word.SURVIVED
    return Kill(
        mutant=about["mutant"],
        defect=about["defect"],
        guarantee=about["guarantee"],
        world_size=about["world_size"],
        word=Word.KILLED if report.passed else lived,
        seconds=report.duration,
    )


def judged(report: pytest.TestReport, about: About) -> Judged:
    """The verdict of a test, from its decisive report."""
    evidence: Any = dict(report.user_properties).get(EVIDENCE, [""])
    ended, *witness = map(str, evidence)
    word, reason = _word(report, ended, about)
    if word is Word.UNKNOWN and witness:
        reason = witness[0]
    shown = tuple(witness) if word in (Word.FAILED, Word.EXPECTED) else ()
    return _judged(about, word, reason, shown, report.duration)


def _judged(
    about: About, word: Word, reason: str, witness: tuple[str, ...] = (), seconds: float = 0.0
) -> Judged:
    return Judged(
        subject=about["subject"],
        kind=about["kind"],
        guarantee=about["guarantee"],
        world_size=about["world_size"],
        word=word,
        reason=reason,
        witness=witness,
        seconds=seconds,
        system=about["system"],
    )


def _word(report: pytest.TestReport, ended: str, about: About) -> tuple[Word, str]:
    if hasattr(report, "wasxfail"):
        return Word.EXPECTED, str(report.wasxfail).removeprefix("reason: ").splitlines()[0]
    if report.skipped and about["obstacle"] is not None:
        return Word.NOT_BOUND, about["obstacle"]
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return Word.SKIPPED, reason.removeprefix("Skipped: ")
    if report.passed:
        found = dict(report.user_properties).get(REMARK, "")
        return Word.PASSED, "; ".join(filter(None, (about["remark"], str(found))))
    if ended == "violated":
        return Word.FAILED, ""
    return (Word.FAILED if ended == "kept" else Word.UNKNOWN), _first_line(report)


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"
