"""Backends that torch's users register: the same verdicts, and no proof that rests on a guess."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.devices.backend_examples import CONFTEST, OTHERS, SOURCE
from tests.acceptance.suite import Finished, Suite, flat

GOOD = re.findall(r"def (test_good\w*)", SOURCE)


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_own.py", SOURCE)
    suite.write("test_others.py", OTHERS)
    return suite.run("-rs", timeout=90)


@pytest.mark.parametrize("name", GOOD)
def test_good(finished: Finished, name: str) -> None:
    assert finished[name].verdict == "passed", finished[name].text


def test_a_failed_assert(finished: Finished) -> None:
    result = finished["test_bad_assert"]
    assert result.verdict == "failed"
    assert "assert 1 != 1" in result.text


def test_a_death(finished: Finished) -> None:
    result = finished["test_bad_death"]
    assert result.verdict == "failed"
    assert "rank 2 " in result.text
    assert "code 3" in result.text


def test_ranks_out_of_step_are_no_finding(finished: Finished) -> None:
    # Nobody numbers its collectives; and the next test gets a group of its own.
    assert finished["test_left_out_of_step"].verdict == "passed"


@pytest.mark.parametrize("name", ["hang", "receive"])
def test_what_never_ends_is_left_to_the_deadline(finished: Finished, name: str) -> None:
    result = finished[f"test_bad_{name}"]
    assert result.verdict == "failed"
    assert "timed out after 6 s" in result.text
    assert "deadlock" not in result.text


def test_the_side_channel_is_known_whatever_the_backend(finished: Finished) -> None:
    result = finished["test_bad_side_channel"]
    assert result.verdict == "failed"
    assert result.duration < 50


@pytest.mark.parametrize(
    "name",
    [
        *("fake", "fake_again", "gloo_for_one_kind_of_device", "two_in_one_group"),
        *("group_of_its_own", "meta", "in_python", "in_python_after_it", "own_beside_gloo"),
    ],
)
def test_other_backends(finished: Finished, name: str) -> None:
    assert finished[f"test_{name}"].verdict == "passed", finished[f"test_{name}"].text


def test_a_failed_assert_on_a_backend_in_python(finished: Finished) -> None:
    result = finished["test_in_python_and_wrong"]
    assert result.verdict == "failed"
    assert "rank 0 of 2 failed in call" in result.text


def test_a_backend_that_cannot_be_built_is_tried_twice(finished: Finished) -> None:
    result = finished["test_unreachable"]
    assert result.verdict == "error"
    why = "the process group could not be built: OSError: no route to the switch"
    assert f"ranks 0-1 could not begin: {why}" in flat(result.text)
    assert re.search(rf"at the first try \(rank [01]: {why}\)", flat(result.text))


def test_gloo_is_compared_beside_a_group_of_another_backend(finished: Finished) -> None:
    result = finished["test_unlike_beside_own"]
    assert result.verdict == "failed"
    assert "the ranks differ in collective #1 of the default group" in result.text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("xpu", "XCCL needs an XPU for each rank: 2 needed, 0 found usable by torch"),
        ("ucc", "has no backend ucc here; there are fake, gloo, in_python, own, unreachable"),
        ("hccl", "has no backend hccl here; there are fake, gloo, in_python, own, unreachable"),
    ],
)
def test_a_backend_of_other_machines_is_a_skip(finished: Finished, name: str, reason: str) -> None:
    assert finished[f"test_no_{name}"].verdict == "skipped"
    assert reason in finished[f"test_no_{name}"].text
    assert reason in finished.flat


@pytest.mark.parametrize("name", ["typo", "typo_again"])
def test_a_backend_that_nobody_has_registered_is_an_error(finished: Finished, name: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "error"
    text = flat(result.text)
    assert "backend='cpu:glo': no backend is called glo; there are fake, gloo, in_python" in text
    assert "import that package in a conftest.py" in text
