"""Findings of all ranks, and their texts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pytest_ddp.extensions.comms.stack import Origin
from pytest_ddp.extensions.portable.buffers import Touch, touched_buffer
from pytest_ddp.extensions.portable.calls import lost_handle, unread_results
from pytest_ddp.extensions.portable.codes import ENTRIES
from pytest_ddp.extensions.portable.differences import DIFFERENCES, finding_of
from pytest_ddp.extensions.portable.finding import OF_KIND, FindingKind, PortabilityFinding, merged
from pytest_ddp.extensions.portable.issued import Group, IssuedOperation
from pytest_ddp.extensions.portable.plugin import found_by_all
from pytest_ddp.rank.operations.table import BY_OPERATOR
from pytest_ddp.verdict.representation import finding_text

LONG = "reduce_scatter_tensor_coalesced on expert_model_parallel_group"
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


def _sent(*groups: str, found: Sequence[object] = ()) -> dict[str, object]:
    """What a rank sends that issues on groups of ranks 0 and 1."""
    rows = [[g, [0, 1], None, g, [0, 1], False, f"{LONG} on {g}", f"/t.py:{g}", 0] for g in groups]
    log = [[number, 0, True] for number in range(len(rows))]
    return {"found": found, "rows": rows, "log": log, "used": [], "is_whole": True}


def test_judges_see_all_ranks() -> None:
    assert found_by_all({0: _sent("a", "b"), 1: _sent("a", "b")}) == []
    (order,) = found_by_all({0: _sent("a", "b"), 1: _sent("b", "a")})
    assert [place for _, place in order.lines] == ["/t.py:a", "/t.py:b", "/t.py:b", "/t.py:a"]


def test_findings_of_single_ranks_come_by_their_kinds() -> None:
    difference = finding_of(DIFFERENCES[0], ()).to_json()
    sent = {0: _sent("a", "b", found=[difference, ONE.to_json()]), 1: _sent("b", "a")}
    order, lost, other = found_by_all(sent)
    assert [order.kind, lost.kind, other.kind] == [
        *(FindingKind.GROUP_ORDER, FindingKind.LOST_HANDLE, FindingKind.DIFFERENCE)
    ]
    assert lost.ranks == (0,)


PLACE = "/home/somebody/project/training/tests/distributed/test_pipeline_schedules.py:1234"


def _of_all_kinds() -> Iterator[PortabilityFinding]:
    """Yield findings of all kinds, with names as long as those of real programs."""
    yield from found_by_all({0: _sent("a", "b"), 1: _sent("b", "a")})
    yield lost_handle(LONG, PLACE, PLACE)
    yield unread_results(123, ((LONG, PLACE),))
    group = Group("0", 0, "expert_model_parallel_group", (0, 1), 0, True, None)
    operator = BY_OPERATOR["reduce_scatter_tensor_coalesced_"]
    flying = IssuedOperation(operator, group, "nccl", 0, Origin())
    for is_write, by in itertools.product((True, False), ("torch.nn.functional.linear", "")):
        yield touched_buffer(Touch(flying, is_write, by, PLACE))
    for row in DIFFERENCES:
        yield replace(finding_of(row, (("called", PLACE),), LONG), ranks=(0, 2, 4, 6))


@pytest.mark.parametrize("finding", [*_of_all_kinds()], ids=lambda one: one.what[-40:])
def test_first_line_is_the_whole_verdict(finding: PortabilityFinding) -> None:
    first, *_ = finding_text(finding.as_finding("cpu:gloo,cuda:nccl")).splitlines()
    assert first.startswith("not portable to cpu:gloo,cuda:nccl: ")
    assert finding.what in first
