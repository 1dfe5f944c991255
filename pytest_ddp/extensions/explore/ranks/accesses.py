"""What a thread uses at a point: a record that ranks make, and that predicting reads."""

from __future__ import annotations

import enum
from typing import NamedTuple


class ThingKind(enum.StrEnum):
    """What conflicts depend on; :mod:`~pytest_ddp.extensions.explore.conflicts` has the rules."""

    FILE = "file"
    ENTRY = "entry"
    FOLDER = "folder"
    MAILBOX = "mailbox"
    KEY = "key"
    LOCK = "lock"
    POINT = "point"


class Thing(NamedTuple):
    """What several threads or ranks may use, named alike in all of them."""

    kind: ThingKind
    name: str
    """The name of the thing; for a mailbox the rank and tag of its messages: ``rank 0, tag 5``."""

    @property
    def token(self) -> str:
        """The token that a change of the thing gives, and that the end of a wait for it takes."""
        return f"{self.kind} {self.name}"


class Access(NamedTuple):
    """The use of a thing."""

    thing: Thing
    changes: bool
    """Whether others may see a difference."""
    verb: str
    """What the thread does with the thing, in the words of a failure: ``reads``, ``removes``."""


FROM_ANY = "receives from any"
"""The verb of a receive that takes what comes first."""
