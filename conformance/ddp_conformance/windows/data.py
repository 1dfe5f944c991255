"""What the samples of moving windows carry, and what their data module announces.

The convention read here is that of the reference; a subject with another one brings
functions of its own, see :class:`ddp_conformance.framework.subjects.DataModule`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Split: TypeAlias = Literal["train", "val"]

PARTS = ("summary", "bin_names", "dataset")
"""Attributes of a generation that a window change has to make anew."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The origin of one delivered sample, as the sample carries it."""

    index: int
    """Position of the sample in its window."""
    window: str
    version: int
    """Number of the rebuild from which the sample comes."""
    token: str = ""
    """A text that is unique for the objects of the rebuild; empty if the sample carries none."""
    rank: int | None = None
    """The rank that the reading code found for itself, if the sample carries it."""
    worker: int | None = None
    """Number of the DataLoader worker; -1 for the process of the rank itself."""
    repeated: bool = False
    """True if the sample only fills up a shard."""


@dataclass(frozen=True)
class Announcement:
    """The window and version that a data module announces."""

    window: str
    version: int
    parts: Mapping[str, object] = field(default_factory=dict)
    """The objects that the version consists of, by name."""


@dataclass(frozen=True)
class WindowRun:
    """What a :class:`~ddp_conformance.framework.subjects.DataModule` factory returns."""

    datamodule: Any
    """A ``LightningDataModule``."""
    callbacks: Sequence[Any] = ()
    """The callbacks that move the windows, in the order in which the Trainer gets them."""
    reload_every: int = 1
    """The Trainer's ``reload_dataloaders_every_n_epochs``."""
    use_distributed_sampler: bool = True
    """The Trainer's option of this name: whether it replaces samplers that are not its own."""


def stamps_of(batch: Any) -> tuple[Stamp, ...]:
    """The stamps of a batch, a mapping or an object with attributes.

    ``sample_id``, ``window_id`` and ``version`` must be there; ``token``, ``origin`` (pairs of
    rank and worker) and ``repeated`` may be. Raises ``TypeError`` for a batch without them.
    """
    indices, windows, versions = (_column(batch, n) for n in ("sample_id", "window_id", "version"))
    if indices is None or windows is None or versions is None:
        raise TypeError(
            f"a batch of type {type(batch).__name__} does not carry sample_id, window_id and "
            "version; let the data set return them, or pass DataModule(stamps=...)"
        )
    count = len(indices)
    tokens = _column(batch, "token") or [""] * count
    origins = _column(batch, "origin") or [(None, None)] * count
    repeated = _column(batch, "repeated") or [False] * count
    return tuple(
        Stamp(int(index), str(window), int(version), str(token), rank, worker, bool(again))
        for index, window, version, token, (rank, worker), again in zip(
            indices, windows, versions, tokens, origins, repeated, strict=True
        )
    )


def origins_of(batch: Any) -> tuple[tuple[int, int], ...]:
    """Rank and worker of each sample of a batch, from its ``origin``; raises ``TypeError``."""
    origins = _column(batch, "origin")
    if origins is None:
        raise TypeError(
            f"a batch of type {type(batch).__name__} carries no origin; let the data set return "
            "the rank and the worker that read each sample, int64 [2]"
        )
    return tuple((int(rank), int(worker)) for rank, worker in origins)


def announced_by(datamodule: Any, split: Split) -> Announcement:
    """``train`` or ``val`` of the data module with its parts, and ``train_version``."""
    generation = getattr(datamodule, split)
    window = generation.window
    return Announcement(
        str(getattr(window, "id", window)),
        int(getattr(datamodule, f"{split}_version")),
        {name: getattr(generation, name) for name in PARTS},
    )


def _column(batch: Any, name: str) -> list[Any] | None:
    carried = batch.get(name) if isinstance(batch, Mapping) else getattr(batch, name, None)
    if carried is None:
        return None
    return list(carried.tolist() if hasattr(carried, "tolist") else carried)
