"""Who holds up a test whose time is over, where nothing could be proved. Pure.

A rank that waits for a peer is held up itself. The cause is whoever does something else: it
computes or sleeps, its process was suspended, or it holds the GIL and cannot even say so.
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
    """One rank at the end of the test's time, looked at twice."""

    rank: int
    ended: bool
    """The rank has run its part of the test to the end."""
    suspended: bool
    """A signal has stopped its process."""
    busy: bool
    """Its process used the processor between the looks."""
    before: Standing | None
    """The answer to the first look; None if there was none."""
    now: Standing | None
    """The answer to the second one."""
    last: Standing | None
    """The last answer that it ever gave."""

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.suspended:
            return "suspended"
        if self.now is None:
            return "silent"
        # Of slow steps, the ranks that wait may have come from one wait to the next.
        return "waits" if _is_waiting(self.before) and _is_waiting(self.now) else "runs"

    @property
    def remark(self) -> str:
        """What its state alone does not tell, as a predicate; or nothing."""
        if self.state == "suspended":
            return "is suspended: a signal such as SIGSTOP has stopped its process"
        if self.state != "silent":
            return ""
        if self.busy:
            return "does not answer: it computes in code that holds the GIL"
        return "does not answer: it sleeps, as in code that holds the GIL"


def _is_waiting(standing: Standing | None) -> bool:
    return standing is not None and (standing.blocked or bool(standing.engaged))


def expire(looks: Sequence[LastLook]) -> Expiry:
    """Say of every rank where it stood, and whose fault it is that the test did not end."""
    by_state: dict[str, list[int]] = {}
    for look in looks:
        by_state.setdefault(look.state, []).append(look.rank)
    waits, ended = by_state.pop("waits", []), by_state.pop("ended", [])
    others = tuple(sorted(rank for ranks in by_state.values() for rank in ranks))
    # Where all that have not ended wait for peers, the few that do not as most do are named.
    cause = RootCause(others) if others else minority([waits, ended], len(looks))
    return Expiry(
        culprits=cause.ranks,
        unknown=cause.unknown,
        table=tuple(row(look.rank, look.state, look.now or look.last) for look in looks),
        remarks={look.rank: look.remark for look in looks if look.remark},
    )
