"""What a data module does in a run of Lightning's Trainer before the first batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record
from ddp_conformance.windows.trainer_runs import (
    Passive,
    UnwrappedStrategy,
    advice_ignored,
    quiet_trainer,
)
from ddp_conformance.writing.history import Opened, Prepared, SetUp
from ddp_conformance.writing.writes import WriteLog


class PreparationWatch:
    """Notes when this rank prepares and sets up, and what it writes meanwhile."""

    def __init__(self, case: Case) -> None:
        self.records: list[Record] = []
        self._case = case
        self._set_up = False
        # Seen by all ranks, and not in the folder that is watched.
        self._done = case.directory.with_name(f"{case.directory.name}-prepared")

    def over(self, datamodule: Any, log: WriteLog) -> Any:
        """The data module, watched; ``log`` hears what this rank writes."""
        _around(datamodule, "prepare_data", self._preparing)
        _around(datamodule, "setup", functools.partial(self._setting_up, log))
        return datamodule

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        in_setup = self._set_up
        yield
        self._done.touch()
        self.records.append(Prepared(self._case.rank, in_setup))

    @contextmanager
    def _setting_up(self, log: WriteLog) -> Iterator[None]:
        self._set_up = True
        self.records.append(SetUp(self._case.rank, self._done.exists()))
        before = set(log.paths)
        yield
        self.records += [
            Opened(self._case.rank, written.path, "setup", written.lock, written.claim, written.own)
            for written in log.written()
            if written.path not in before
        ]


def fit_one_batch(case: Case, datamodule: Any, machines: int = 1) -> None:
    """The shortest possible run of the Trainer, as on ``machines`` machines."""
    with advice_ignored():
        trainer = quiet_trainer(
            case,
            UnwrappedStrategy(),
            [],
            max_epochs=1,
            machines=machines,
            limit_train_batches=1,
            limit_val_batches=0,
            num_sanity_val_steps=0,
        )
        trainer.fit(Passive(), datamodule=datamodule)


def _around(datamodule: Any, method: str, context: Callable[[], Any]) -> None:
    original = getattr(datamodule, method)

    # Lightning follows ``__wrapped__`` when it looks for overridden hooks.
    @functools.wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        with context():
            return original(*arguments, **options)

    setattr(datamodule, method, watched)
