"""Checks once more, with another hash seed on one rank, which orders a set of strings differently.

Ranks that are forked share a hash seed; those of a cluster do not. The part first runs in two
processes with a hash seed each, which costs two forks. Both are rank 0, in a process group without
other ranks. If they behave differently, which may have other reasons, or if one raises, as it may
without its peers, the guarantee is checked on real ranks with these hash seeds.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks, shared_directory
from ddp_conformance.framework.registry import remark
from ddp_conformance.framework.subjects import MadeAtImport, Subject
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.launched.order import Module, Named
from ddp_conformance.launched.start.kept_servers import SECONDS, Server, in_process_of

Observe: TypeAlias = Callable[[Any, Case], Iterator[Record]]
Find: TypeAlias = Callable[[Any, Ranks], Sequence[Violation]]
Found: TypeAlias = tuple[Violation, ...] | None
"""None if nothing could be observed."""

SHARED = "hash seed shared"
NOT_IMPORTED = "make the subject, or its functions, at the top level of a module"


def find_apart(
    subject: Subject, ranks: Ranks, size: int, observe: Observe, find: Find
) -> tuple[Violation, ...]:
    """What ``find`` finds only if the last rank has a hash seed of its own.

    ``observe`` yields what a rank does by itself; both functions must be picklable. A remark is
    made if no other hash seed could be tried.
    """
    if ranks.world_size == 1 or len(set(ranks.gather(hash(SHARED)))) > 1:
        return ()
    part = Part.of(subject)
    if part is None:
        remark(f"{SHARED}: {NOT_IMPORTED}")
        return ()
    if os.environ.get("PYTHONHASHSEED", "random") != "random":
        remark(f"{SHARED} by PYTHONHASHSEED")
        return ()
    with shared_directory(ranks) as directory:
        case = Case(size, ranks.rank, ranks.world_size, directory / "case")
        equal = ranks.gather(ranks.rank == 0 and _do_the_same(part, case, observe))[0]
        if equal:
            return ()
        last = ranks.world_size - 1
        found = _found(part, ranks, find, directory / "own", int(ranks.rank == last))
        # A difference that has another reason than the hash seed is no evidence.
        if found != ():
            shared = _found(part, ranks, find, directory / "shared", 0)
            if found is None or shared != ():
                remark(SHARED)
                return ()
    how = f"with a hash seed of its own on rank {last}: "
    return tuple(replace(one, what=how + one.what) for one in found)


@dataclass(frozen=True, slots=True)
class OfFunctions:
    """A subject that is made anew of what modules have at their top level."""

    kind: type[Subject]
    fields: dict[str, Any]

    @classmethod
    def of(cls, subject: Subject) -> OfFunctions:
        """Raises if some function has no name in its module, or one that now means another."""
        values = {field.name: getattr(subject, field.name) for field in fields(subject)}
        Named.of(type(subject))
        made = cls(type(subject), {k: _named(v) if callable(v) else v for k, v in values.items()})
        pickle.dumps(made)
        return made

    @property
    def imports(self) -> list[Named]:
        """What :meth:`make` imports."""
        return [value for value in self.fields.values() if isinstance(value, Named)]

    def make(self) -> Subject:
        """The subject."""
        return self.kind(
            **{k: v.load() if isinstance(v, Named) else v for k, v in self.fields.items()}
        )


def _named(function: Callable[..., Any]) -> Named:
    named = Named.of(function)
    if named.module not in sys.modules or named.load() is not function:
        raise ValueError(f"{function!r} is not the object that its module has by this name")
    return named


@dataclass(frozen=True, slots=True)
class OfItsModule:
    """A subject that a module makes when it is imported: one with lambdas, partials, closures."""

    module: Module
    place: MadeAtImport

    @classmethod
    def of(cls, subject: Subject) -> OfItsModule | None:
        """None for a subject that was made later."""
        place = MadeAtImport.of(subject)
        module = place and sys.modules.get(place.module)
        if place is None or module is None:
            return None
        return cls(Module(place.module, getattr(module, "__file__", None) or ""), place)

    @property
    def imports(self) -> list[Module]:
        """What :meth:`make` imports."""
        return [self.module]

    def make(self) -> Subject:
        """The subject."""
        self.module.load()
        return self.place.subject()


@dataclass(frozen=True, slots=True)
class Part:
    """All that is needed to make the same subject in another process."""

    source: OfFunctions | OfItsModule
    seed: int
    """The seed of :mod:`ddp_conformance.framework.nemesis`."""

    @classmethod
    def of(cls, subject: Subject) -> Part | None:
        """None for a subject that no other process can make."""
        try:
            source: OfFunctions | OfItsModule | None = OfFunctions.of(subject)
        except Exception:
            source = OfItsModule.of(subject)
        return None if source is None else cls(source, nemesis.seed())

    def make(self) -> Subject:
        """The subject; in the other process."""
        nemesis.use_seed(self.seed)
        return self.source.make()


# ---------------------------------------------------------------- the look


def _do_the_same(part: Part, case: Case, observe: Observe) -> bool:
    look = functools.partial(_look, part, case, observe)
    seen = []
    try:
        for seed in (0, 1):
            Server(seed).start()  # all at once: each imports torch
        for seed in (0, 1):
            case.directory.mkdir()  # the same path in both: it may be part of what is seen
            seen.append(in_process_of(seed, look, part.source.imports))
            shutil.rmtree(case.directory)
    except Exception:
        return False  # the other ranks wait for an answer
    return seen[0] == seen[1]


def _look(part: Part, case: Case, observe: Observe) -> list[Record]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    subject = part.make()
    nemesis.scatter("hash seed", case.rank)
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=case.rank, world_size=case.world_size)
    if subject.prepare is not None:
        subject.prepare(case)
    return list(observe(subject, case))


# ---------------------------------------------------------------- the check


@dataclass
class StoreRanks:
    """Ranks that have nothing in common but a store."""

    rank: int
    world_size: int
    store: Store
    exchanges: int = 0

    def gather(self, obj: Any) -> list[Any]:
        """The objects of all ranks by rank."""
        self.exchanges += 1
        self.store.set(f"{self.exchanges}-{self.rank}", pickle.dumps(obj).hex())
        names = [f"{self.exchanges}-{rank}" for rank in range(self.world_size)]
        return [pickle.loads(bytes.fromhex(self.store.get(name).decode())) for name in names]


def _found(part: Part, ranks: Ranks, find: Find, store: Path, seed: int) -> Found:
    own = functools.partial(_check, part, find, ranks.rank, ranks.world_size, str(store))
    try:
        found = in_process_of(seed, own)
    except Exception:
        found = None
    by_rank = ranks.gather(found)
    return by_rank[0] if all(one is not None for one in by_rank) else None


def _check(part: Part, find: Find, rank: int, world_size: int, path: str) -> Found:
    subject = part.make()
    limit = timedelta(seconds=SECONDS)
    store = FileStore(path, world_size)
    store.set_timeout(limit)
    ranks = StoreRanks(rank, world_size, PrefixStore("ranks", store))
    group = PrefixStore("group", store)
    dist.init_process_group("gloo", store=group, rank=rank, world_size=world_size, timeout=limit)
    try:
        with nemesis.at_work("hash seed", rank):
            return tuple(find(subject, ranks))
    except UndecidedError:
        return None
    finally:
        ranks.gather(None)  # no rank leaves while another one still connects to it
