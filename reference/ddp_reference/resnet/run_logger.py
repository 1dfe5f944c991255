"""TensorBoard for a run on many ranks: one directory, one event file, one graph."""

from __future__ import annotations

import warnings
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from ddp_reference.resnet.agreement import ConfigError, from_rank_zero

CHECKPOINTS = "checkpoints"


class RunLogger(TensorBoardLogger):
    """A TensorBoard logger whose directory is chosen once, by rank 0, for all ranks.

    Lightning's own logger looks for a free version on every rank, and a rank that looks
    after rank 0 has made its directory finds another one. Here the first use of
    :attr:`version` is a collective; ``Trainer.fit`` makes it on all ranks as soon as the
    process group stands. Lightning also closes the event file and draws the graph again
    for every ``fit`` and ``test``; here both last until :meth:`close`.
    """

    def __init__(self, save_dir: str | Path, name: str) -> None:
        super().__init__(save_dir, name, log_graph=True, default_hp_metric=False)
        self._graph_drawn = False

    @property
    def version(self) -> int | str:
        """Number of the run, equal on all ranks. Raises :class:`ConfigError` on all together."""
        if self._version is None:
            self._version = from_rank_zero(lambda: claim_version(Path(self.root_dir)))
        return self._version

    @rank_zero_only
    def log_graph(self, model: Any, input_array: Tensor | None = None) -> None:
        """Draw the model once."""
        if self._graph_drawn:
            return
        self._graph_drawn = True
        with warnings.catch_warnings():
            # TensorBoard's writer traces, which is deprecated, and touches every property
            # of the metrics on its way; whoever logs a graph has no choice.
            warnings.simplefilter("ignore", DeprecationWarning)
            super().log_graph(model, input_array)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush only: closing would make the next ``fit`` or ``test`` begin a second file."""
        if self._experiment is not None:
            self.save()

    @rank_zero_only
    def close(self) -> None:
        """Close the event file; the last call of a run."""
        if self._experiment is not None:
            self.experiment.close()


def claim_version(root: Path) -> int:
    """Make ``root/version_N/checkpoints`` for the first free N and return N.

    Making the directory is the claim: two runs that start together get two numbers.
    Raises :class:`ConfigError` if nothing can be made there.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = {path.name for path in root.iterdir()}
        for number in count():
            if f"version_{number}" not in taken and _claimed(root / f"version_{number}"):
                return number
    except OSError as error:
        raise ConfigError(
            f"cannot make a log directory in {root} ({error.strerror}); "
            "name a writable one with --log-dir"
        ) from error
    raise AssertionError("unreachable: count() does not end")


def _claimed(directory: Path) -> bool:
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    (directory / CHECKPOINTS).mkdir()
    return True
