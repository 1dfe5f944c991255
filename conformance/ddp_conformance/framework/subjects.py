"""The base of all kinds of subject, the data-parallel parts that can be checked.

A subject has a factory, and what its author declares about the result. A check makes a new
component in every rank and for every case, and judges its behaviour.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar, Self

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.traits import checked_traits


@dataclass(frozen=True, slots=True)
class MadeAtImport:
    """One of the subjects that a module makes while it is imported.

    Every process that imports the module makes them, whatever their functions are: the number is
    one among those of the same name.
    """

    module: str
    name: str
    number: int

    @classmethod
    def of(cls, subject: Subject) -> MadeAtImport | None:
        """None for a subject that was made later, as in a test or a fixture."""
        for (module, name), made in _made.items():
            for number, one in enumerate(made):
                if one is subject:
                    return cls(module, name, number)
        return None

    def subject(self) -> Subject:
        """The subject, when its module has been imported; raises ``LookupError`` if it was not
        made.
        """
        return _made[self.module, self.name][self.number]


_made: dict[tuple[str, str], list[Subject]] = {}


def _module_in_import() -> str | None:
    """The module that is being imported here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    module = frame and frame.f_globals.get("__name__")
    # The outermost one is that in which the process begins.
    return module if module in sys.modules and module != "__main__" else None


class _ShownAtTheUsersLine(type):
    """Raises what is wrong with a subject without our frames, some of which have no source."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return super().__call__(*args, **kwargs)
        except ValueError as error:
            raise error.with_traceback(None) from None


@dataclass(frozen=True, repr=False)
class Subject(metaclass=_ShownAtTheUsersLine):
    """What all kinds have in common. Raises ``ValueError`` for a subject that cannot be used."""

    kind: ClassVar[str] = "subject"

    make: Callable[..., Any]
    """Makes the component for a :class:`~ddp_conformance.Case`; a function at the top level of a
    module, so that its name can be a test id."""
    traits: AbstractSet[str] = frozenset()
    """Names from :data:`ddp_conformance.framework.traits.TRAITS`."""
    name: str = ""
    """The name for test ids and the table; by default the factory's name."""
    prepare: Callable[[Case], None] | None = None
    """Called on rank 0 alone before ``make`` on any rank: writes files to ``case.directory``."""

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise ValueError(
                f"{type(self).__name__}(make={self.make!r}): make must be a function that takes a "
                "Case; pass the function itself, not what it returns"
            )
        name = self.name or getattr(self.make, "__qualname__", "")
        if not name or "<" in name:
            raise ValueError(
                f"{type(self).__name__}(make={self.make!r}) has no readable name; move the factory "
                "to the top level of a module, or pass name="
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "traits", checked_traits(self.traits, name))
        if module := _module_in_import():
            _made.setdefault((module, name), []).append(self)

    def __init_subclass__(cls) -> None:
        # A dataclass keeps a repr that its class defines. The generated one has about 250
        # characters, which pytest would print above the reason of each failure.
        cls.__repr__ = Subject.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        traits = f", {{{', '.join(sorted(self.traits))}}}" if self.traits else ""
        return f"<{self.kind} {self.name}{traits}>"

    def _check_collectives(self, collectives: int | None) -> None:
        """Raise ``ValueError`` unless both the trait and ``collectives=`` are given, or neither."""
        if ("states_collectives" in self.traits) != (collectives is not None):
            raise ValueError(
                f"{self.name}: the trait 'states_collectives' and collectives= need each other"
            )
        if collectives is not None and collectives < 0:
            raise ValueError(f"{self.name}: collectives={collectives}: give 0 or more")

    @classmethod
    def of(cls, function: Callable[..., Any], traits: AbstractSet[str]) -> Self:
        """A subject with a function, its traits, and defaults for all else."""
        return cls(make=function, traits=traits)
