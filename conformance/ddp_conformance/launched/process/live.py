"""The life of a launched rank: its environment, the user's entry, and the sentinel."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from ddp_conformance.framework import nemesis
from ddp_conformance.launched.evidence import FAULTS, PHASE, leave_error
from ddp_conformance.launched.history import Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import UNDISTURBED, Order
from ddp_conformance.launched.process.delays import Nemesis
from ddp_conformance.launched.process.leftovers import Sockets, Surroundings, rejoin
from pytest_ddp.protocol.status_page import StatusPage
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.status import landmarks
from pytest_ddp.rank.status.phase_stack import PhaseStack


def live(order: Order) -> None:
    """Be a rank; the target of its process."""
    files = Path(order.files(order.rank))
    _redirect(files)
    os.environ.clear()
    os.environ.update(order.environment)
    crash_stacks.install(str(files / FAULTS))
    lifecycle = PhaseStack(StatusPage(str(files / PHASE)))
    landmarks.install(lifecycle)
    lifecycle.begin("run")
    os.chdir(order.directory)
    (files / "pid").write_text(str(os.getpid()))
    assert threading.active_count() == 1
    # As in two launches of a program: random states that differ.
    nemesis.use_seed(order.seed)
    nemesis.scatter("launch", order.rank)
    try:
        order.work.does.load()(order, Journal(files / "journal"))
    except BaseException as error:
        leave_error(files, error)
        raise


def run_entry(order: Order, journal: Journal) -> None:
    """Call the user's training entry, watched; ``Work.does`` of a Training subject."""
    # Not at import: it imports torch's compiler and FSDP, which takes 1.2 s of CPU. Only launched
    # ranks need it, and their server has imported it.
    from ddp_conformance.launched.process.watch import EntryWatch

    nemesis = Nemesis(order, journal)
    watch = EntryWatch(order, journal, nemesis)
    before, sockets = Surroundings.now(), Sockets()
    watch.install()
    _call(order.work.entry.load(), order.work.argv)
    watch.close()
    undisturbed = order.work.scenario == UNDISTURBED
    again = rejoin(order) if undisturbed else ()
    for left in chain(before.left(order.rank), sockets.left(order.rank), again):
        journal.add(left)
    # The sentinel: an exit code of 0 alone may be that of os._exit(0).
    journal.add(Happened(order.rank, "returned"))


def _call(entry: Callable[..., Any], argv: tuple[str, ...]) -> None:
    """Call an entry as its command would: with ``sys.argv`` set, and its result as the exit
    code."""
    sys.argv = [entry.__module__, *argv]
    arguments = [list(argv)] if _takes_arguments(entry) else []
    try:
        code = entry(*arguments)
    except SystemExit as leaving:
        if leaving.code:
            raise
        code = None
    if isinstance(code, int) and code:
        raise SystemExit(code)


def _takes_arguments(entry: Callable[..., Any]) -> bool:
    try:
        inspect.signature(entry).bind([])
    except TypeError:
        return False
    return True


def _redirect(files: Path) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        target = os.open(files / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(target, descriptor)
        os.close(target)
