"""The side channel of the ``ddp`` fixture: barrier, gather and broadcast.

Objects pass through as opaque text. An exchange that can never complete is answered at once with
the reason, so that its ranks need not wait for the timeout.
"""

from __future__ import annotations

from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.protocol.messages import Exchange, ExchangeReply

_DONE = "done"


class Exchanges:
    """Collects the arrivals of the ranks of one test, or of one last teardown."""

    def __init__(self, processes: list[RankProcess]) -> None:
        self._processes = processes
        self._waiting: dict[RankProcess, Exchange] = {}
        self._left: dict[int, str] = {}
        """Why ranks take part in no further operation, by rank."""

    def arrive(self, process: RankProcess, exchange: Exchange) -> None:
        """A rank waits in an operation."""
        self._waiting[process] = exchange
        self._settle()

    def leave(self, process: RankProcess, how: str) -> None:
        """A rank has ended its part of the test and takes part in no further operation."""
        self._left[process.rank] = "has ended the test" if how == _DONE else f"has {how}"
        self._waiting.pop(process, None)
        self._settle()

    def lack(self, rank: int) -> None:
        """A rank of the world takes no part in any operation."""
        self._left[rank] = "takes no part"

    def _settle(self) -> None:
        if not self._waiting:
            return
        error = self._absent() or self._mismatch()
        if error is None and len(self._waiting) < len(self._processes):
            return
        payloads = () if error else self._payloads()
        for process, exchange in self._waiting.items():
            process.send(ExchangeReply(exchange.number, payloads, error))
        self._waiting.clear()

    def _absent(self) -> str | None:
        if not self._left:
            return None
        waiting = _words(next(iter(self._waiting.values())))
        absent = [f"rank {rank} {how}" for rank, how in sorted(self._left.items())]
        return f"{waiting} can never complete: {', '.join(absent)}"

    def _mismatch(self) -> str | None:
        # All before the last one match, or they would have been answered with an error.
        first, last = next(iter(self._waiting.values())), next(reversed(self._waiting.values()))
        if _kind(first) == _kind(last):
            return None
        here = [(p.rank, self._waiting[p]) for p in self._processes if p in self._waiting]
        places = [f"rank {rank} is in {_words(exchange)}" for rank, exchange in here]
        return f"the ranks are in different operations: {', '.join(places)}"

    def _payloads(self) -> tuple[str, ...]:
        return tuple(self._waiting[process].payload for process in self._processes)


def _kind(exchange: Exchange) -> tuple[object, ...]:
    return exchange.operation, exchange.number, exchange.source


def _words(exchange: Exchange) -> str:
    source = "" if exchange.source is None else f"source={exchange.source}"
    return f"ddp.{exchange.operation}({source}) #{exchange.number} of the test"
