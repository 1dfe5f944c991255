"""What a launched rank does for an ErrorPath subject: run the loop, and maybe die in it."""

from __future__ import annotations

from pathlib import Path

from ddp_conformance.callbacks.history import Tripped
from ddp_conformance.callbacks.stepping import ERROR_STEP, run_loop
from ddp_conformance.framework.case import Case
from ddp_conformance.launched.history import Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order
from ddp_conformance.launched.process.delays import Nemesis
from ddp_conformance.launched.rank_devices import join, leave


def loop_and_die(order: Order, journal: Journal) -> None:
    """Advance the loop; in its user code the dying rank dies as the scenario states."""
    make, (size, directory) = order.work.entry.load(), order.work.argv
    case = Case(int(size), order.rank, order.world_size, Path(directory))
    nemesis = Nemesis(order, journal)

    def trip(step: int) -> None:
        if order.rank == order.work.scenario.dying and step == ERROR_STEP:
            journal.add(Tripped(order.rank, step))
            nemesis.die()

    join(order.device)
    run_loop(case, lambda: make(case, trip), journal.add)
    leave()
    journal.add(Happened(order.rank, "returned"))
