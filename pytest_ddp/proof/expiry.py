"""Find the ranks that hold up a test at its timeout, where no hang could be proved. Pure.

A rank that waits for a peer is held up itself. The cause is a rank that does something else: it
computes or sleeps, its process is suspended, or it holds the GIL and cannot answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddp.evidence.outcome import Expiry, RootCause
from pytest_ddp.proof.minority import minority
from pytest_ddp.proof.prover import row
from pytest_ddp.wire.survey import Standing


@dataclass(frozen=True, slots=True)
class LastLook:
    """One rank at the test's timeout, probed twice."""

    rank: int
    ended: bool
    """Whether the rank has run its part of the test to the end."""
    suspended: bool
    """Whether a signal has stopped its process."""
    busy: bool
    """Whether its process used the processor between the probes."""
    before: Standing | None
    """The answer to the first probe; None if there was none."""
    now: Standing | None
    """The answer to the second probe."""
    last: Standing | None
    """The last answer in the whole test."""

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.suspended:
            return "suspended"
        if self.now is None:
            return "silent"
        # With slow steps, a waiting rank may have gone from one wait to the next.
        return "waits" if _is_waiting(self.before) and _is_waiting(self.now) else "runs"

    @property
    def remark(self) -> str:
        """More about its state, as a predicate; or empty."""
        if self.state == "suspended":
            return "is suspended: a signal such as SIGSTOP has stopped its process"
        if self.state != "silent":
            return ""
        if self.busy:
            return "does not answer: it computes in code that holds the GIL"
        return "does not answer: it sleeps, as in code that holds the GIL"


def _is_waiting(status: Standing | None) -> bool:
    return status is not None and (status.blocked or bool(status.engaged))


def expire(looks: Sequence[LastLook]) -> Expiry:
    """The state of every rank, and the ranks that are the cause of the timeout."""
    by_state: dict[str, list[int]] = {}
    for look in looks:
        by_state.setdefault(look.state, []).append(look.rank)
    waits, ended = by_state.pop("waits", []), by_state.pop("ended", [])
    others = tuple(sorted(rank for ranks in by_state.values() for rank in ranks))
    # If all that have not ended wait for peers, the minority is the cause.
    cause = RootCause(others) if others else minority([waits, ended], len(looks))
    return Expiry(
        culprits=cause.ranks,
        unknown=cause.unknown,
        table=tuple(row(look.rank, look.state, look.now or look.last) for look in looks),
        remarks={look.rank: look.remark for look in looks if look.remark},
    )
