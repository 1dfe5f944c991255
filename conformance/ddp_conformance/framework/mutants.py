"""Known-bad components, each with the guarantee that must catch it, and benign variants.

A check that no component ever fails proves nothing. Each group has a folder ``mutants``; its
modules have a tuple ``MUTANTS`` and a tuple ``BENIGN_VARIANTS``. A new file needs no registration.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from ddp_conformance.framework.registry import GROUPS
from ddp_conformance.framework.subjects import Subject


@dataclass(frozen=True)
class Mutant:
    """A component as people really write it, with one defect."""

    subject: Subject
    guarantee: str
    """Id of the guarantee that it must fail; it may fail others too."""
    defect: str
    """What is wrong, in a few words."""
    world_sizes: tuple[int, ...] = (2, 3, 4)
    """Where the defect must show."""


@dataclass(frozen=True)
class BenignVariant:
    """A component that looks like a mutant and is right: no check may fail."""

    subject: Subject
    likeness: str
    """What it has in common with a defect, or why it is right."""
    world_sizes: tuple[int, ...] = (1, 2, 4)
    """Where it is run; three ranks matter where samples are dealt out to ranks."""
    undecided: frozenset[str] = frozenset()
    """Guarantees that cannot be judged for it."""


@cache
def all_mutants(*, installed_only: bool = False) -> tuple[Mutant, ...]:
    """The mutants of all groups, or only those that need no missing library (Lightning, …)."""
    modules = _modules(installed_only=installed_only)
    return tuple(mutant for module in modules for mutant in getattr(module, "MUTANTS", ()))


@cache
def all_benign_variants(*, installed_only: bool = False) -> tuple[BenignVariant, ...]:
    """The benign variants of all groups, or only those that need no missing library."""
    modules = _modules(installed_only=installed_only)
    return tuple(
        variant for module in modules for variant in getattr(module, "BENIGN_VARIANTS", ())
    )


def _modules(*, installed_only: bool) -> Iterator[ModuleType]:
    for group in GROUPS:
        folder = importlib.import_module(f"ddp_conformance.{group}.mutants")
        for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            try:
                yield importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                ours = str(error.name).startswith("ddp_conformance")
                if ours or not installed_only:
                    raise
