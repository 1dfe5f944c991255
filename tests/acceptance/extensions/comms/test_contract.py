"""``ddp.comms`` on real libraries, in all forms, and used wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import Finished, Suite

HERE = Path(__file__).parent
MODELS = HERE / "example_models.py"


def run_examples(suite: Suite, name: str, *options: str) -> Finished:
    """Run an inner suite, with the default timeout: on a busy machine, inductor needs two minutes
    for its first program."""
    suite.write(MODELS.name, MODELS.read_text())
    suite.write(f"test_{name}s.py", (HERE / f"{name}_examples.py").read_text())
    return suite.run(*options, timeout=400)


@pytest.mark.parametrize("name", ["parallel", "form", "torch"])
def test_records_are_what_was_communicated(suite: Suite, name: str) -> None:
    demand_green(run_examples(suite, name, "-k", "not ws4"))


def demand_green(finished: Finished) -> None:
    """No test of an inner suite failed."""
    red = {
        nodeid: result.text
        for nodeid, result in finished.results.items()
        if result.verdict not in ("passed", "skipped")
    }
    assert not red
    assert finished.results


@pytest.fixture(scope="module")
def wrong(new_suite: Callable[[], Suite]) -> Finished:
    return run_examples(new_suite(), "wrong")


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("nested", "ddp.comms: blocks do not nest; leave the one opened at"),
        ("used_twice", "ddp.comms: used before, at"),
        ("never_entered", "ddp.comms: nothing is recorded yet"),
        ("unknown_operation", "no operation 'allreduce'; the operations are\nE       all_gather,"),
        ("unknown_group", "no group 'tp' on this rank; the groups are world"),
        ("called_directly", "a backend of group world was called directly, 1 times"),
        ("warmup_without_a_model", "ddp.comms(warmup=1): pass the model"),
        ("nothing_but_warmup", "the model has run 1 forward passes, so that no step is left"),
    ],
)
def test_used_wrongly(wrong: Finished, test: str, words: str) -> None:
    assert wrong[f"test_{test}"].verdict == "failed"
    assert words in wrong[f"test_{test}"].text


def test_a_block_left_open_is_an_error_of_its_test_alone(wrong: Finished) -> None:
    for name in ("left_open", "open_for_longer_than_a_test"):
        assert wrong[f"test_{name}"].verdict == "passed+error"
        assert "was still open after its test" in wrong[f"test_{name}"].text
    assert wrong["test_after_it"].verdict == "passed"


def test_a_failure_has_a_table(wrong: Finished) -> None:
    ((title, table),) = wrong["test_too_many"].sections.items()
    assert title == "ddp.comms call [ranks 0-1]"
    assert table.startswith("block at test_")
    assert "all_reduce  world  float32" in table
    assert "<communication: all_reduce 2; 32 B>" in table


@pytest.fixture(scope="module")
def mutants(new_suite: Callable[[], Suite]) -> Finished:
    return run_examples(new_suite(), "mutant")


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("ddp[reduce_twice]", "{'all_reduce': 5} !="),
        ("ddp[forget_no_sync]", "{'all_reduce': 2} !="),
        ("ddp[log_each_step]", "{'all_reduce': 2} !="),
        ("fsdp[gather_all]", "{'all_gather': 8} !="),
    ],
)
def test_a_contract_catches_each_mutant(mutants: Finished, test: str, found: str) -> None:
    assert mutants[f"test_{test}"].verdict == "failed"
    assert found in mutants[f"test_{test}"].text


@pytest.mark.parametrize(
    "test",
    [
        *("ddp[accumulate]", "ddp[accumulate_by_sum]", "ddp[log_locally]"),
        *("fsdp[train]", "fsdp[save_by_shard]"),
    ],
)
def test_a_contract_accuses_no_variant(mutants: Finished, test: str) -> None:
    assert mutants[f"test_{test}"].verdict == "passed"
