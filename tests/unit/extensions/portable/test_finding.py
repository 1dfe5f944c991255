"""Findings of all ranks, and their texts."""

from __future__ import annotations

import json
from dataclasses import replace

from pytest_ddp.extensions.portable.finding import WIDTH, Finding, merged
from pytest_ddp.extensions.portable.judging import findings

ONE = Finding(
    "lost handle",
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
    assert Finding.from_json(json.loads(json.dumps(ONE.to_json()))) == ONE


def test_the_text() -> None:
    lines = replace(ONE, ranks=(0, 2)).text("nccl").splitlines()
    assert lines[0] == (
        "not portable to nccl: lost handle: nothing waited for all_reduce on world (ranks 0, 2)"
    )
    assert lines[1].split() == ["issued", "/src/test_it.py:7"]
    assert lines[2] == "  gone when its function had returned"
    assert lines[-1] == "  Fix: keep it."
    assert all(len(line) <= WIDTH for line in lines)


def _log(first: int, second: int) -> dict[str, object]:
    """A rank that issues on two groups of ranks 0 and 1."""
    return {
        "channels": [["collective", name, 0, 0, [0, 1]] for name in "ab"],
        "names": [["all_reduce on a", "/t.py:1"], ["all_reduce on b", "/t.py:2"]],
        "log": [[first, first, 0, 1], [second, second, 0, 2]],
    }


def test_judges_see_all_ranks() -> None:
    assert findings({0: {"orders": _log(0, 1)}, 1: {"orders": _log(0, 1)}}) == []
    (order,) = findings({0: {"orders": _log(0, 1)}, 1: {"orders": _log(1, 0)}})
    assert [place for _, place in order.lines] == ["/t.py:1", "/t.py:2", "/t.py:2", "/t.py:1"]
    (lost,) = findings({0: {"handles": [ONE.to_json()]}, 1: {}})
    assert lost.ranks == (0,)
