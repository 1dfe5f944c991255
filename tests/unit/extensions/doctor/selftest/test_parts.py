"""Which parts of the selftest run where, and that each declares what it expects."""

from __future__ import annotations

import ast

import pytest

from pytest_ddp.extensions.doctor.selftest import inner_session
from pytest_ddp.extensions.doctor.selftest.cases import SelftestCase, expected_of, selftest_cases

SHARED = ["shared-training", "shared-verdicts", "differences"]
ONE = ["nccl-training", *SHARED, "leases", "crashes", "shared-guarantees"]
PAIR = [
    *("nccl-training", *SHARED, "nccl-verdicts"),
    *("leases", "crashes", "aborts", "shared-guarantees", "guarantees"),
]


def names(gpus: int) -> list[str]:
    return [part.name for part in selftest_cases(gpus) if not part.obstacle(gpus)]


@pytest.mark.parametrize(
    ("gpus", "more"),
    [
        (0, []),
        (1, ONE),
        (2, PAIR),
        (4, [*PAIR, "all-gpus"]),
    ],
)
def test_more_gpus_more_parts(gpus: int, more: list[str]) -> None:
    assert names(gpus) == ["gloo", "workers", *more]


def test_what_cannot_run_has_a_reason() -> None:
    obstacles = {part.name: part.obstacle(1) for part in selftest_cases(1)}
    assert obstacles["nccl-verdicts"] == "it needs 2 GPUs, and 1 are usable"
    absent = SelftestCase("p", "", (), "gloo", 2, modules=("no_such_module",))
    assert absent.obstacle(0) == "no_such_module is not installed"


def test_ranks_share_gpus_only_where_the_part_allows_it() -> None:
    for gpus in range(12):
        for part in selftest_cases(gpus):
            room = 2 * gpus if "--ddp-ranks-per-gpu=2" in part.arguments else gpus
            assert part.obstacle(gpus) or part.backend == "gloo" or part.size <= room


def test_every_suite_is_in_a_part_and_expects_each_of_its_tests() -> None:
    suites = {file.name for file in inner_session.SUITES.glob("test_*.py")} - {"test_trial.py"}
    assert suites == {suite for part in selftest_cases(8) for suite in part.suites}
    for suite in suites:
        expected = expected_of(SelftestCase("p", "", (suite,), "gloo", 2))
        tree = ast.parse((inner_session.SUITES / suite).read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        tests = {name for name in functions if name.startswith("test_")}
        assert {name.partition("[")[0] for name in expected} == tests
        assert tests


def test_no_two_tests_of_a_session_have_one_name() -> None:
    for part in selftest_cases(8):
        alone = [expected_of(SelftestCase("p", "", (suite,), "gloo", 2)) for suite in part.suites]
        assert len(expected_of(part)) == sum(map(len, alone))


def test_all_kinds_of_verdicts_are_expected() -> None:
    kinds = {verdict for verdict, _ in expected_of(selftest_cases(0)[0]).values()}
    assert kinds == {"passed", "failed", "skipped", "xfailed", "error", "passed+error"}
