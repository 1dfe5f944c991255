"""Findings of all ranks, and their texts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_ddp.extensions.portable.buffer_log import touched_buffer
from pytest_ddp.extensions.portable.buffers import Touch
from pytest_ddp.extensions.portable.codes import ENTRIES
from pytest_ddp.extensions.portable.differences import DIFFERENCES, finding_of
from pytest_ddp.extensions.portable.events import Group, IssuedOperation
from pytest_ddp.extensions.portable.finding import OF_KIND, FindingKind, PortabilityFinding, merged
from pytest_ddp.extensions.portable.handles import lost_handle, unread_results
from pytest_ddp.extensions.portable.judges import findings
from pytest_ddp.rank.operations.table import BY_OPERATOR
from pytest_ddp.verdict.representation import finding_text

ONE = PortabilityFinding(
    FindingKind.LOST_HANDLE,
    "nothing waited for all_reduce on world",
    (("issued", "/src/test_it.py:7"), ("gone when its function had returned", "")),
    "On NCCL " + "the result may be read before it is there, " * 6,
    "keep it.",
)


def test_one_of_several_ranks_is_one() -> None:
    other = replace(ONE, lines=(("issued", "/src/test_it.py:8"),))
    assert merged({1: [ONE, other], 0: [ONE, ONE]}) == [
        replace(ONE, ranks=(0, 1)),
        replace(other, ranks=(1,)),
    ]


def test_it_crosses_processes() -> None:
    assert PortabilityFinding.from_json(json.loads(json.dumps(ONE.to_json()))) == ONE


def test_the_text() -> None:
    lines = finding_text(replace(ONE, ranks=(0, 2)).as_finding("nccl")).splitlines()
    assert lines[0] == (
        "not portable to nccl: lost handle: nothing waited for all_reduce on world (ranks 0, 2)"
    )
    assert lines[1].split() == ["issued", "/src/test_it.py:7"]
    assert lines[2] == "  gone when its function had returned"
    assert lines[-1] == "  Fix: keep it."


def test_each_kind_has_the_code_of_its_entry_and_an_unread_result_none() -> None:
    assert {*FindingKind} - {*OF_KIND} == {FindingKind.UNREAD_RESULT}
    for kind, code in OF_KIND.items():
        (entry,) = (entry for entry in ENTRIES if entry.code == code)
        assert all(text.startswith(f"not portable to nccl: {kind}: ") for text in entry.texts)
        assert replace(ONE, kind=kind).as_finding("nccl").code == code


def _log(first: int, second: int, name: str = "all_reduce") -> dict[str, object]:
    """A rank that issues on two groups of ranks 0 and 1."""
    return {
        "match_keys": [["collective", name, 0, 0, [0, 1]] for name in "ab"],
        "names": [[f"{name} on a", "/t.py:1"], [f"{name} on b", "/t.py:2"]],
        "log": [[first, first, 0, 1], [second, second, 0, 2]],
    }


def test_judges_see_all_ranks() -> None:
    assert findings({0: {"orders": _log(0, 1)}, 1: {"orders": _log(0, 1)}}) == []
    (order,) = findings({0: {"orders": _log(0, 1)}, 1: {"orders": _log(1, 0)}})
    assert [place for _, place in order.lines] == ["/t.py:1", "/t.py:2", "/t.py:2", "/t.py:1"]
    (lost,) = findings({0: {"handles": [ONE.to_json()]}, 1: {}})
    assert lost.ranks == (0,)


LONG = "reduce_scatter_tensor_coalesced on expert_model_parallel_group"
PLACE = "/home/somebody/project/training/tests/distributed/test_pipeline_schedules.py:1234"


def _of_all_kinds() -> Iterator[PortabilityFinding]:
    """With names as long as those of real programs."""
    yield from findings({0: {"orders": _log(0, 1, LONG)}, 1: {"orders": _log(1, 0, LONG)}})
    yield lost_handle(LONG, PLACE, PLACE)
    yield unread_results(123, ((LONG, PLACE),))
    group = Group("0", 0, "expert_model_parallel_group", (0, 1), 0, True, None)
    operator = BY_OPERATOR["reduce_scatter_tensor_coalesced_"]
    flying = IssuedOperation(1, operator, group, "nccl", 0, None, None, 0, "", None, None, 0)
    for is_write, by in itertools.product((True, False), ("torch.nn.functional.linear", "")):
        yield touched_buffer(Touch(flying, is_write, by, PLACE))
    for row in DIFFERENCES:
        yield finding_of(row, f"{LONG}: {row.what}", (("called", PLACE),), (0, 2, 4, 6))


@pytest.mark.parametrize("finding", [*_of_all_kinds()], ids=lambda one: one.what[-40:])
def test_first_line_is_the_whole_verdict(finding: PortabilityFinding) -> None:
    first, *_ = finding_text(finding.as_finding("cpu:gloo,cuda:nccl")).splitlines()
    assert first.startswith("not portable to cpu:gloo,cuda:nccl: ")
    assert finding.what in first
