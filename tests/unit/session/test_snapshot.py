"""What a look at the ranks' processes at a timeout concludes from the kernel's numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.session import run
from pytest_ddp.session.rank_run import RankRun


class NoAnswer:
    """A prober of a rank that does not answer."""

    def ask(self) -> None: ...

    def is_answered(self) -> bool:
        return False

    def answers(self) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize(
    ("state", "seconds", "remark"),
    [
        ("R", 10.0, "does not answer: it computes"),
        ("R", 0.0, "does not answer: it computes"),  # others have the processors
        ("S", 10.0, "does not answer: it computes"),
        ("S", 0.0, "does not answer: it sleeps"),
        ("", 0.0, "does not answer, as in code"),
        ("T", 0.0, "is suspended"),
    ],
)
def test_a_silent_rank_computes_if_it_had_or_lacked_a_processor(
    state: str, seconds: float, remark: str
) -> None:
    looks = iter([(state, 0.0), (state, seconds)])
    process: Any = SimpleNamespace(rank=1, glance=lambda: next(looks))
    part: Any = RankRun(process)
    prober: Any = NoAnswer()
    expiry = run.take_snapshot([part], prober, lambda moment, done: None)
    assert expiry.culprits == (1,)
    assert expiry.remarks[1].startswith(remark)
