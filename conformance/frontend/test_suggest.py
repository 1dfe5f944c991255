"""The description of a part that is suggested, from verdicts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_conformance import Loader, Metric, Sampler, Writer
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.frontend.report import Judged
from ddp_conformance.frontend.suggest import descriptions, suggestion
from ddp_conformance.frontend.table import Word


def judged(subject: Subject, broken: dict[str, set[str]], unknown: bool = False) -> list[Judged]:
    """Verdicts in which each description breaks what is said of it, by a part of its name."""
    return [
        Judged(one.subject.name, one.subject.kind, check.id, size, word, witness=("seen",))
        for one in descriptions(subject)
        for check in one.checks
        for size in (2, 3)
        for breaks in [
            any(check.id in ids for name, ids in broken.items() if name in one.subject.name)
        ]
        for word in [
            Word.UNKNOWN if unknown else Word.FAILED if breaks and size == 3 else Word.PASSED
        ]
    ]


def suggested(subject: Subject, broken: dict[str, set[str]]) -> tuple[bool, list[str]]:
    return suggestion(descriptions(subject), judged(subject, broken))


def test_what_allows_least_comes_first() -> None:
    assert suggested(Sampler(len), {})[1][0] == "fits: Sampler(len, traits={'exact'})"
    fits, lines = suggested(Sampler(len), {"exact": {"SMP-01"}})
    assert (fits, lines[0]) == (True, "fits: Sampler(len, traits={'pads'})")


def test_full_batches_are_suggested_where_nothing_else_fits() -> None:
    without = {name: {"SMP-01"} for name in ("'exact'", "{'pads'}", "{'drops'}", "size=2")}
    fits, lines = suggested(Loader(len), without | {"Loader": {"SMP-03"}})
    assert fits
    assert lines == [
        "fits: Loader(len, traits={'drops', 'pads'}, batch_size=3)",
        "  keeps: SMP-01",
        "  keeps: SMP-02",
        "  would break, with 'evaluates': SMP-03: seen",
        "  may declare 'shuffles': SMP-04",
    ]


def test_a_trait_that_excuses_is_named() -> None:
    fits, lines = suggested(Sampler(len), {"Sampler": {"SMP-02"}})
    assert fits
    assert "  needs 'uneven': SMP-02: seen" in lines


def test_where_nothing_fits_the_closest_is_shown_with_all_that_it_breaks() -> None:
    broken = {"Writer(len)": {"WRT-04"}, "first_wins": {"WRT-04"}, "Writer": {"WRT-01"}}
    fits, lines = suggested(Writer(len), broken)
    assert not fits
    assert lines == [
        "no description fits; the closest is Writer(len, traits={'replaces'})",
        "  WRT-01 failed: seen",
    ]


def test_a_breach_that_a_trait_excuses_is_shown_beside_what_is_undecided() -> None:
    metric = Metric(len)
    verdicts = [
        replace(one, word=Word.UNKNOWN, witness=(), reason="no reset")
        if one.guarantee == "MET-05"
        else one
        for one in judged(metric, {"": {"MET-01"}})
    ]
    fits, lines = suggestion(descriptions(metric), verdicts)
    assert not fits
    assert lines == [
        "no description fits; the closest is Metric(len)",
        "  MET-01 failed (does not bind 'nonlinear'): seen",
        "  MET-05 unknown: no reset",
    ]


def test_another_kind_is_left_out_where_one_is_known() -> None:
    sampler, metric = Sampler(len), Metric(len)
    tried = (*descriptions(sampler), *descriptions(metric))
    verdicts = [*judged(sampler, {"": {"SMP-01"}}), *judged(metric, {}, unknown=True)]
    fits, lines = suggestion(tried, verdicts)
    assert not fits
    assert not any("Metric" in line for line in lines)


def test_what_is_of_no_kind_is_shown_what_each_needs() -> None:
    subjects = (Sampler(len), Metric(len))
    tried = [one for subject in subjects for one in descriptions(subject)]
    verdicts = [one for subject in subjects for one in judged(subject, {}, unknown=True)]
    fits, lines = suggestion(tried, verdicts)
    assert not fits
    assert any("Metric, which has update(), compute() and reset()" in line for line in lines)
    assert any("Sampler, which is iterable and gives indices" in line for line in lines)


@pytest.mark.parametrize("subject", [Sampler(len), Loader(len), Writer(len), Metric(len)])
def test_descriptions_have_names_of_their_own(subject: Subject) -> None:
    names = [one.subject.name for one in descriptions(subject)]
    assert len(names) == len(set(names))
