"""``--explain`` shows the entry of SPEC and code that exists, for every guarantee."""

from __future__ import annotations

import ast

import pytest
from ddp_conformance.framework.mutants import all_benign_variants, all_mutants
from ddp_conformance.framework.registry import all_checks, known_ids
from ddp_conformance.frontend.command import main
from ddp_conformance.frontend.explain import explanation, most_similar
from ddp_conformance.frontend.report import guarantee_of


@pytest.mark.parametrize("guarantee_id", known_ids())
def test_every_guarantee_is_explained(guarantee_id: str) -> None:
    text = "\n".join(explanation(guarantee_id))
    entry, broken = text.split("# Breaks it: ", 1)
    bad, good = broken.split("# Keeps it: ", 1)
    assert entry.startswith(guarantee_id)
    assert guarantee_of(guarantee_id).statement in entry
    for part in ("Rationale.", "Check.", "Applies to.", "Origin.", "Known exceptions."):
        assert f"- {part} " in entry
    mutants = [mutant for mutant in all_mutants() if mutant.guarantee == guarantee_id]
    assert all(mutant.defect in broken for mutant in mutants)
    assert f"# <{mutants[0].subject.kind} {mutants[0].subject.name}" in bad
    assert ast.parse(f"# {bad}").body, "whole definitions are shown"
    ast.parse(f"# {good}")


def test_nothing_is_shown_twice() -> None:
    text = "\n".join(explanation("MET-02"))
    code = ast.parse("# " + text.split("# Breaks it: ")[1]).body
    names = [node.name for node in code if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert names
    assert len(names) == len(set(names))


def test_the_variant_is_of_the_same_kind_where_there_is_one() -> None:
    for check in all_checks():
        variants = [
            variant for variant in all_benign_variants() if isinstance(variant.subject, check.kinds)
        ]
        for mutant in (mutant for mutant in all_mutants() if mutant.guarantee == check.id):
            kinds = {type(variant.subject) for variant in variants}
            if type(mutant.subject) in kinds:
                assert type(most_similar(mutant, variants).subject) is type(mutant.subject)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", "SMP-03"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("SMP-03 (MUST, tier 1)\n")
    assert "def padded_validation(" in printed
    with pytest.raises(SystemExit, match="2"):
        main(["--explain", "smp-3"])
    assert "smp-3: there is no such guarantee; did you mean SMP-03?" in capsys.readouterr().err
