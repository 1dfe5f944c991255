"""Parameters that ranks have in different orders."""

from __future__ import annotations

import pytest

from pytest_ddp.protocol.messages import Parameter
from pytest_ddp.session.collected_parameters import refusals


def _rank(*texts: str, name: str = "config") -> Parameter:
    values = {f"test_it[config{number}]": text for number, text in enumerate(texts)}
    return Parameter("test_it", name, values)


def test_only_tests_with_other_values_are_refused() -> None:
    given = [[_rank("a", "b", "c")], [_rank("b", "a", "c")], [_rank("a", "b", "c")]]
    found = refusals(given)
    assert found.keys() == {"test_it[config0]", "test_it[config1]"}
    first, _, _ = found["test_it[config0]"].partition("\n")
    assert first == "parameter config is a on ranks 0, 2, b on rank 1"


def test_each_parameter_is_judged_by_itself() -> None:
    size = _rank("1", "2", name="size")
    found = refusals([[_rank("a", "b"), size], [_rank("b", "a"), size]])
    assert "size" not in found["test_it[config0]"]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([[_rank("a", "b")]] * 2, id="the same"),
        pytest.param([[_rank("cpu 0", "x")], [_rank("cpu 1", "x")]], id="by rank"),
        pytest.param([[_rank("a", "a")], [_rank("a", "b")]], id="a value more"),
        pytest.param([[_rank("a", "b")], [_rank("a")]], id="a test less"),
        pytest.param([[_rank("a", "b")], []], id="not there"),
        pytest.param([[], []], id="forks of one process"),
    ],
)
def test_other_differences_may_be_intended(given: list[list[Parameter]]) -> None:
    assert refusals(given) == {}
