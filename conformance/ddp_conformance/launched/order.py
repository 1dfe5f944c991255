"""The orders of a launched process, as plain data that can be pickled."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any, Literal, TypeAlias

from ddp_conformance.launched.rank_devices import RankDevice


@dataclass(frozen=True, slots=True)
class Module:
    """A module for a process that has to import it."""

    module: str
    file: str

    def load(self) -> ModuleType:
        """The module; one that is not on the path is read from its file."""
        return sys.modules.get(self.module) or self._import()

    def _import(self) -> ModuleType:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            # Test files under pytest's importlib mode cannot be imported by name.
            spec = importlib.util.spec_from_file_location(self.module, self.file)
            missing = error.name or ""
            ours = self.module == missing or self.module.startswith(f"{missing}.")
            if not ours or spec is None or spec.loader is None:
                raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[self.module]  # as the import system does: half of it is no module
            raise
        return module


@dataclass(frozen=True, slots=True)
class Named:
    """A function or class at the top level of a module, for a process that has to import it."""

    module: str
    qualname: str
    file: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Named:
        """Raises ``ValueError`` for what no other process can import."""
        module, qualname = getattr(function, "__module__", ""), _qualname(function)
        if not module or not qualname or "<" in qualname:
            raise ValueError(
                f"{function!r} cannot be run in another process; move it to the top level of a "
                "module"
            )
        try:
            file = inspect.getsourcefile(function) or ""
        except TypeError:
            file = ""  # written in C: its module can be imported by name
        return cls(module, qualname, file)

    def load(self) -> Any:
        """Load the function."""
        module: Any = Module(self.module, self.file).load()
        return reduce(getattr, self.qualname.split("."), module)


Imported: TypeAlias = Module | Named


def _qualname(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", "")


Death: TypeAlias = Literal["raises", "is killed", "exits with 0"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The disturbance of a run: one at most, so that its effect is known."""

    late: int | None = None
    """The rank that enters each stage only when all others have ended or wait for another rank."""
    looked: bool = False
    """Whether the late rank is late only at changes of files that others change too, and has looked
    before them."""
    dying: int | None = None
    """The rank that dies at its first optimizer step."""
    death: Death = "raises"
    eager: bool = False
    """``torch.compile`` does nothing."""
    lone: int | None = None
    """The rank that is the only one that has no GPU; the run ends with the choice of a backend."""

    @property
    def label(self) -> str:
        """The disturbance in words, for evidence; empty for an undisturbed run."""
        if self.late is not None:
            where = (
                "between its looks and its changes of files" if self.looked else "at every stage"
            )
            return f"rank {self.late} late {where}"
        if self.dying is not None:
            return self.death_at("at its first step")
        if self.lone is not None:
            return f"rank {self.lone} without a GPU"
        return "without torch.compile" if self.eager else ""

    def death_at(self, where: str) -> str:
        """The death in words, with its place."""
        return f"rank {self.dying} {self.death} {where}"


UNDISTURBED = Scenario()


@dataclass(frozen=True, slots=True)
class Work:
    """The work of all ranks of a run."""

    does: Named
    """A function of an :class:`Order` and a journal."""
    entry: Named
    """The user's function, for ``does``."""
    argv: tuple[str, ...] = ()
    index: Named | None = None
    """Makes a data set index of what a sampler yields."""
    scenario: Scenario = UNDISTURBED
    devices: tuple[RankDevice, ...] = ()
    """The device of each rank, for ``does``; empty for gloo on the CPU."""


@dataclass(frozen=True, slots=True)
class Order:
    """One rank's part."""

    work: Work
    rank: int
    world_size: int
    directory: str
    """The run's folder, which becomes the working directory."""
    private: str
    """A folder for what is known of this run, with a folder for each rank."""
    environment: tuple[tuple[str, str], ...]
    """The process's environment variables."""
    seed: int
    """The seed of :mod:`ddp_conformance.framework.nemesis`."""

    @property
    def device(self) -> RankDevice:
        """The device of this rank."""
        return self.work.devices[self.rank] if self.work.devices else RankDevice()

    def files(self, rank: int) -> str:
        """The folder for what is known of a rank."""
        return f"{self.private}/{rank}"
