"""What ranks do while they train.

These records are written to a file one by one, as they come: a rank that dies of SIGKILL
has left what it did until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ddp_conformance.framework.history import Record

Stage: TypeAlias = Literal[
    "init_process_group",
    "destroy_process_group",
    "loader",
    "wrap",
    "optimizer",
    "compile",
    "returned",
    "fault",
]


@dataclass(frozen=True, slots=True)
class Happened(Record):
    """A stage of the run began; the order of a rank's stages is that of its history."""

    stage: Stage
    site: str = ""
    """``file:line`` of the caller."""


@dataclass(frozen=True, slots=True)
class Changes(Record):
    """The rank removes, cuts, makes or renames files or folders of the run."""


@dataclass(frozen=True, slots=True)
class Chose(Record):
    """What a rank trains on."""

    what: Literal["backend", "world size", "device"]
    value: str


@dataclass(frozen=True, slots=True)
class Fetched(Record):
    """One pass over a map-style data set by a DataLoader."""

    loader: int
    """The number of the loader, in the order in which loaders are made."""
    number: int
    """Passes of this loader before."""
    size: int
    """Samples in the data set."""
    indices: tuple[int, ...]
    """The indices that the sampler gave out, in order."""
    batch: int
    """Indices in the largest batch."""
    complete: bool
    """False if the pass was left before its end."""
    trained: bool
    """True if an optimizer stepped on what the pass delivered."""


@dataclass(frozen=True, slots=True)
class Optimized(Record):
    """An optimizer stepped."""

    step: int
    """Steps of all optimizers before, and this one: from 1."""
    rate: float
    """The largest learning rate of its groups."""
    wrapped: bool
    """False if no module was wrapped, so that the live parameters are not known."""
    live: tuple[str, ...]
    """Names of the wrapped modules' parameters with ``requires_grad``."""
    owned: tuple[str, ...]
    """Names of live parameters that the optimizer has."""
    foreign: int
    """Parameters of the optimizer that no wrapped module has."""
    changed: int
    """How many live parameters this step changed."""
    digest: str
    """The digest of the live parameters' content afterwards; of this rank's part where they are
    sharded."""
    sums: tuple[float, ...] = ()
    """Two sums for each live parameter: of its values, and of its absolute values."""
    sharded: bool = False
    """Each rank has a part of the parameters, which may be an empty one."""


@dataclass(frozen=True, slots=True)
class Saved(Record):
    """``torch.save`` was given the model's parameters."""

    path: str
    wrong: tuple[str, ...]
    """Names that the bare model, before it was wrapped or compiled, does not have."""


@dataclass(frozen=True, slots=True)
class Left(Record):
    """A resource that the run has left: it was not there before."""

    what: str


@dataclass(frozen=True, slots=True)
class Compiled(Record):
    """Graphs that torch.compile made in this rank."""

    graphs: int


@dataclass(frozen=True, slots=True)
class Made(Record):
    """A file that the run left in its folder; its rank is 0, as all ranks share the folder."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class Ended(Record):
    """How the process of a rank ended, as its parent saw it."""

    order: int
    """The place among the ranks in the order in which they ended, from 0."""
    code: int | None
    """Exit code; negative for a signal; None if the process had to be stopped."""
    returned: bool
    """Whether the program's entry returned."""
    error: str = ""
    """The exception with its type; empty if the rank raised none."""
    phase: str = ""
    """The phase of torch that the rank was in, such as ``DDP construction``."""
    site: str = ""
    """``file:line in function`` of the user's code where the rank was."""
