"""The log of a rank: what is noted is what the pytest process reads, up to a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ddp.extensions.comms.stack import Origin
from pytest_ddp.extensions.portable import issued, orders, point_to_point
from pytest_ddp.extensions.portable.issued import (
    Group,
    History,
    IssuedOperation,
    MatchKey,
    OperationLog,
    read,
)
from pytest_ddp.rank.operations.table import BY_NAME
from pytest_ddp.system.stdlib import threading
from tests.unit.extensions.portable.programs import histories

MADE, FOUND = (
    Group(name, made, name, (3, 5), 3, True, None) for name, made in (("a", 1), ("b", 0))
)


def _operation(name: str, group: Group = MADE, **given: Any) -> IssuedOperation:
    given = {"backend": "nccl", "thread": threading.get_ident(), "origin": Origin(), **given}
    return IssuedOperation(form=BY_NAME[name], group=group, **given)


def _read(log: OperationLog) -> History:
    return read(3, json.loads(json.dumps(log.to_json())))


def test_what_is_noted_is_read() -> None:
    log = OperationLog(default_group_was_used=False)
    reduce, send = _operation("all_reduce"), _operation("send", peer=1, tag=7)
    for operation in (reduce, send, _operation("recv", peer=-1)):
        log.issued(operation, 16)
    thread = threading.Thread(target=log.waited, args=(reduce,))
    thread.start()
    thread.join()
    first, second, third, wait = _read(log).steps
    assert (wait.issue, wait.is_wait, wait.thread) == (first.issue, True, 1)
    assert first.issue.key == MatchKey("a#1", (3, 5), None)
    assert second.issue.key == MatchKey("a#1", (3, 5), 7)
    assert (second.issue.is_send, second.issue.peer, second.issue.nbytes) == (True, 5, 16)
    assert (third.issue.peer, third.issue.is_matched) == (-1, False)
    assert [step.issue.place for step in (first, second, third)] == [1, 2, 3]


def test_operations_of_gloo_are_not_noted() -> None:
    log = OperationLog(default_group_was_used=False)
    log.issued(_operation("all_reduce", backend="gloo"), 0)
    log.issued(_operation("monitored_barrier"), 0)
    assert _read(log).steps == []


def test_a_batch_has_one_place() -> None:
    log = OperationLog(default_group_was_used=False)
    log.issued(_operation("all_reduce"), 0)
    for number in (1, 2):
        log.issued(_operation("send", peer=1, origin=Origin(batch=number)), 0)
    assert [issue.place for issue in _read(log).issues] == [1, 2, 2]


@pytest.mark.parametrize("was_used", [False, True])
def test_a_group_that_a_fixture_may_have_used(was_used: bool) -> None:
    log = OperationLog(default_group_was_used=was_used)
    for group in (MADE, FOUND):
        log.issued(_operation("all_reduce", group), 0)
    assert _read(log).used == ({FOUND.key} if was_used else set())


def test_of_a_rank_with_too_much_only_the_order_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issued, "_KEPT", 2)
    log = OperationLog(default_group_was_used=False)
    operations = [_operation("all_reduce") for _ in range(3)]
    for operation in operations:
        log.issued(operation, 0)
    log.waited(operations[0])
    history = _read(log)
    assert (len(history.steps), history.is_whole) == (2, False)


def _found(*programs: str, is_whole: bool) -> list[str]:
    ranks = histories(programs, {"w": (0, 1, 2), "a": (0, 1), "world": (0, 1, 2)})
    ranks = {rank: one._replace(is_whole=is_whole) for rank, one in ranks.items()}
    found = [*orders.order_findings(ranks), *point_to_point.message_findings(ranks)]
    return [finding.what for finding in found]


@pytest.mark.parametrize(
    "programs",
    [("w", "w >2", "<1 w"), (">1#1 >1#2", "<0#2 <0#1", ""), ("(>1)", "(<0)", "world")],
    ids=["reliance", "tags", "first batch"],
)
def test_what_needs_the_whole(programs: tuple[str, ...]) -> None:
    (found,) = _found(*programs, is_whole=True)
    assert found not in _found(*programs, is_whole=False)


def test_what_needs_the_beginning_alone() -> None:
    assert len(_found("w a", "a w", "w", is_whole=False)) == 1
