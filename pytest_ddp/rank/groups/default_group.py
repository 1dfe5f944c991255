"""The default process group of a rank: building it, keeping it, counting on it, giving it up."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from sys import getrefcount
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed import destroy_process_group, init_process_group, is_initialized
from torch.distributed.distributed_c10d import _abort_process_group

from pytest_ddp.protocol.host_messages import World
from pytest_ddp.protocol.rank_status import (
    Dropped,
    GroupCount,
    MessageCounts,
    MessageShape,
    NewGroup,
    Traffic,
)
from pytest_ddp.rank.groups import backends, torch_state
from pytest_ddp.rank.groups.backends import MissingBackend, missing
from pytest_ddp.rank.groups.journal import CallJournal
from pytest_ddp.rank.operations.operation import name_of
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os, threading

# ------------------------------------------------------------------
# Keys of the default group's store: each test sees only its own.
#
# Under torchrun, each test has a store of its own. A new store would need a new group, whereas a
# prefix before the keys of the old one costs a few microseconds. Keys of subgroups are below it.
# A test that asks for the store below its prefix costs a new group.

_GETTERS = ("_get_default_store", "_get_process_group_store")


def _no_group() -> None:
    """Stand in for a weak reference to a group."""


class PrefixedStore(PrefixStore):
    """A group's store with the keys of one test; records whether the store below it was asked for.

    torch has a single Python object for a store as long as that is referenced, so that code which
    takes one prefix store after another off a store of its own gets this object as well.
    """

    def __init__(self, prefix: str, whole: Store, keys: StoreKeys) -> None:
        super().__init__(prefix, whole)
        self._prefix, self._whole, self._keys = prefix, whole, keys

    @property
    def underlying_store(self) -> Store:
        self._keys.bypassed = True
        return self._whole

    @property
    def _underlying_non_prefix_store(self) -> Store:
        self._keys.bypassed = True
        below: Store = super()._underlying_non_prefix_store  # type: ignore[misc]
        return below

    def clone(self) -> PrefixedStore:
        whole: Any = self._whole  # torch's stubs lack it
        return PrefixedStore(self._prefix, whole.clone(), self._keys)


class StoreKeys:
    """Puts a prefix before the keys of each test, in what Python gets as the group's store."""

    def __init__(self) -> None:
        self.uses = 0
        """How often Python has requested a group's store."""
        self.bypassed = False
        """Whether a test may have set keys without its prefix since the group was built."""
        self._group: Callable[[], Any] = _no_group
        self._whole: Any = None
        """The store that the group was built with."""
        self._built_timeout: Any = None
        self._timeout: Any = None
        """The store's timeout at the begin of each test."""
        self._test = 0
        for name in _GETTERS:
            self._wrap(dist.distributed_c10d, name)
        if hasattr(dist.ProcessGroup, "get_group_store"):  # an older torch has none
            self._wrap(dist.ProcessGroup, "get_group_store")

    def begin(self, group: dist.ProcessGroup | None, test: int) -> None:
        """Show only keys that were set since a test began in the store of a group.

        Args:
            group: the plugin's own default group, if it has one.
            test: number of that test, the same on all ranks.
        """
        if group is None or group is not self._group():  # which may be gone
            self._group = _no_group if group is None else weakref.ref(group)
            self._whole = None if group is None else _registry()[group][1]
            self._built_timeout = None if self._whole is None else self._whole.timeout
            self._test, self.bypassed = 0, False
        if self._whole is None:
            return
        if test != self._test:
            backend, _ = _registry()[group]
            _registry()[group] = backend, PrefixedStore(f"test {test}", self._whole, self)
            self._test, self._timeout = test, self._built_timeout
        # set_timeout of a prefix store sets that of the whole store: undo what a test did.
        self._whole.set_timeout(self._timeout)

    @contextlib.contextmanager
    def of_wide_fixture(self) -> Iterator[None]:
        """Keep a timeout that is set in the block, as keys, as long as the fixture lives."""
        whole = self._whole
        before = None if whole is None else whole.timeout
        yield
        if whole is not None and whole is self._whole and whole.timeout != before:
            self._timeout = whole.timeout

    def _wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def got(*args: Any) -> Any:
            self.uses += 1
            group = self._group()
            if group is not None and args[:1] == (group,) and group in _registry():
                # The group's C++ object has only the store that it was built with.
                return _registry()[group][1]
            return original(*args)

        setattr(owner, name, got)


def _registry() -> dict[Any, tuple[str, Store]]:
    """torch's registry: backend and store of each group."""
    registry: dict[Any, tuple[str, Store]] = dist.distributed_c10d._world.pg_map
    return registry


_PATIENCE = 0.2
"""Seconds to wait until groups are freed; slower ones are freed while the next test runs."""


class GroupUse(NamedTuple):
    """Snapshot of how far a rank's process groups have been used."""

    made: dict[str, int]
    operations: list[int]
    """Number of operations on each group."""
    held: list[int]
    """Number of references to each group: an FSDP model holds one before any operation."""
    stores: int
    """How often Python has requested a group's store."""

    def since(self, before: GroupUse) -> bool:
        """True if a group was used between ``before`` and this snapshot."""
        if self._replace(held=[]) != before._replace(held=[]):
            return True
        # Fewer references mean that the garbage collector freed another test's objects.
        return any(now > then for now, then in zip(self.held, before.held, strict=True))


class DefaultGroup:
    """Owns ``torch.distributed``'s default group, from test to test."""

    def __init__(self, journal: CallJournal, world: World, rank: int) -> None:
        self.journal = journal
        self._world = world
        self._rank = rank
        self._keys = StoreKeys()
        self._store: str | None = None
        self._file: int | None = None
        """The file that the store reads and writes. Its number stays the same for the life of the
        rank: a group that was given up may open it late, and must not find a file of the test
        there."""
        self._built = False
        """Whether there is a group of the plugin's, or was until the test destroyed it."""
        self._reference: Callable[[], dist.ProcessGroup | None] = _no_group
        """The plugin's group, weakly: when a test destroys it, its connections close, and peers
        notice."""
        self._known: dict[str, int] = {}
        """Groups that existed when the current test began, as ``CallJournal.made`` has them."""
        self._unwaited = 0
        """Functional collectives that were open when the current test began."""
        self._numbered = 0
        """torch's counter of groups, from which it makes names, when the current test began."""
        self.missing: MissingBackend | None = None
        """The backend that the current test needs and this rank does not have."""

    def prepare(
        self, store: str | None, file: list[int], served: Callable[[], Store], keys: int
    ) -> None:
        """Provide the group that a test needs: keep it, build a new one, or have none.

        No group is built with a backend that is :attr:`missing`. All ranks agree on that, as all
        have imported the same.

        Args:
            store: name of the store for the ranks' rendezvous; None for no group.
            file: descriptor of a new store's file, which this object owns from now on; or empty.
            served: connects to the store that rank 0 serves, for a store that is not in a file.
            keys: number of the test from which on keys in the group's store are kept.

        Raises:
            RuntimeError: torch cannot build it (``dist.DistError`` and its subclasses).
        """
        if self.journal.made != self._known:
            torch_state.forget_meshes()
        if not groups():
            # torch counts a group that it could not build, and names the next one by the count: a
            # rank after such a failure and a new rank would wait for each other for ever.
            dist.distributed_c10d._world.group_count = 0
        if not self._built:
            self.missing = missing(self._world.backend)
        if store is not None and store != self._store:
            self.destroy()
            if file:
                self._take(*file)
            if self.missing is None:
                self._build(self._in_file() if file else PrefixStore(store, served()))
                self._store = store
        self._keys.begin(self._reference(), keys)
        self.journal.begin(groups())
        self._known = dict(self.journal.made)
        self._unwaited = torch_state.unwaited()
        self._numbered = _numbered()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the default group in a block: under torchrun, none exists while files are imported.

        Raises:
            RuntimeError: the block made a default group of its own.
        """
        world = dist.distributed_c10d._world
        ours = world.default_pg
        if ours is None or self.is_users():
            yield
            return
        world.default_pg = None
        try:
            yield
        finally:
            made, world.default_pg = world.default_pg, ours
        if made is not None:
            raise RuntimeError("the import made a default process group where there was one")

    def counts(self) -> tuple[GroupCount, ...]:
        """Collectives issued since :meth:`prepare` on each group that exists now."""
        alike: Counter[tuple[int, ...]] = Counter()
        found = []
        for group in groups():
            count = self._count(group)
            if count.name != "0":
                alike[count.members] += 1
                count = replace(count, nth=alike[count.members])
            found.append(count)
        return tuple(found)

    @contextlib.contextmanager
    def of_wide_fixture(self) -> Iterator[None]:
        """Attribute what is begun or set in the block to a fixture that is wider than a test."""
        with self.journal.of_wide_fixture(), self._keys.of_wide_fixture():
            yield

    def use(self) -> GroupUse:
        """A snapshot of how far the groups have been used."""
        present = groups()
        return GroupUse(
            made=dict(self.journal.made),
            operations=[self.journal.count(group) for group in present],
            held=[getrefcount(group) for group in present],
            stores=self._keys.uses,
        )

    def _count(self, group: Any) -> GroupCount:
        world = dist.distributed_c10d._world
        name = world.pg_names[group]
        return GroupCount(
            name=name,
            members=tuple(dist.get_process_group_ranks(group)),
            collectives=self.journal.collectives(group) - self.journal.issued_before(name),
            what=self.journal.what.get(name, 0),
            where=self.journal.where.get(name, 0),
            failed=name in self.journal.failed,
        )

    def traffic(self, *, unclear: bool) -> Traffic | None:
        """Messages since :meth:`prepare` on groups that exist now; None if none began or was lost.

        Args:
            unclear: True if a fixture's thread may have begun some of these messages.
        """
        journal, lost = self.journal, torch_state.unwaited() > self._unwaited
        if not journal.sent and not journal.received and not lost:
            return None
        present = {name_of(group): group for group in groups()}
        dropped = tuple(self.dropped())
        lost |= bool(dropped)
        delivering = [pair for pair in present.items() if backends.delivers(pair[1])]
        messages = [one for pair in delivering for one in self._messages(*pair)]
        shapes = {number: one for pair in delivering for number, one in self._shapes(*pair)}
        places = {number: place for place, number in enumerate(shapes)}
        order = tuple(places[number] for number in journal.messages.order() if number in places)
        return Traffic(tuple(messages), lost, unclear, dropped, tuple(shapes.values()), order)

    def dropped(self) -> Iterator[Dropped]:
        """Messages by gloo whose handle was gone before anything waited for it."""
        by_name = {name_of(group): group for group in groups()}
        for call in self.journal.operations.works.lost():
            group, site = by_name.get(call.group), call.code_line
            if group is None or call.root is None or site is None:
                continue
            if not backends.matches_tags(group):
                continue
            by_global = dist.distributed_c10d._world.pg_group_ranks[group]
            members = {own: rank for rank, own in by_global.items()}
            yield Dropped(call.name == "send", members.get(call.root, -1), site)

    def _messages(self, name: str, group: Any) -> Iterator[MessageCounts]:
        journal, by_global = self.journal, dist.distributed_c10d._world.pg_group_ranks[group]
        members = {own: rank for rank, own in by_global.items()}
        has_tags = backends.matches_tags(group)
        for operation, counts in (("send", journal.sent), ("recv", journal.received)):
            for (of, peer, tag), count in dict(counts).items():
                if of == name and count:
                    yield MessageCounts(
                        group=name,
                        members=tuple(dist.get_process_group_ranks(group)),
                        is_send=operation == "send",
                        peer=members.get(peer, -1),
                        tag=tag if has_tags else 0,
                        count=count,
                        wide=journal.wide[operation, of, peer, tag],
                        site=journal.sites[operation, of, peer, tag].code_line,
                    )

    def _shapes(self, name: str, group: Any) -> Iterator[tuple[int, MessageShape]]:
        """The shapes of the messages on a group, by their numbers in the journal."""
        by_global = dist.distributed_c10d._world.pg_group_ranks[group]
        members = {own: rank for rank, own in by_global.items()}
        has_tags = backends.matches_tags(group)
        for number, (call, thread) in self.journal.messages.shapes(name):
            pieces, site = call.sends or call.receives, call.code_line
            if call.root is None or call.tag is None or site is None or not any(pieces[:1]):
                continue
            yield (
                number,
                MessageShape(
                    group=name,
                    is_send=call.name == "send",
                    peer=members.get(call.root, -1),
                    tag=call.tag if has_tags else 0,
                    elements=sum(elements for elements, _ in pieces[0]),
                    dtype=str(pieces[0][0][1]).removeprefix("torch."),
                    site=site,
                    thread=thread,
                ),
            )

    def numbered(self) -> int:
        """How many groups torch has counted in this test, including those of other ranks."""
        return _numbered() - self._numbered

    def new_groups(self) -> Iterator[NewGroup]:
        """The groups of this rank that the test has made, numbered as :meth:`numbered` does."""
        for count in self.counts():
            if count.name.isdecimal() and count.name in self.journal.asked_for:
                number = int(count.name) + 1 - self._numbered
                if number > 0 and count.name != "0":
                    yield NewGroup(number, count.members)

    def doubt(self, *, held: bool) -> str | None:
        """Why the next test must not reuse the default group; None if it may.

        Args:
            held: whether a wide fixture uses the group; its tests share their keys.
        """
        group = self._reference()
        if not self._built:
            return None if self.missing is None else "its backend was missing"
        if not is_initialized():
            return "the test destroyed the default process group"
        if dist.group.WORLD is not group:
            return "the test replaced the default process group"
        if name_of(group) in self.journal.failed:
            return "a wait on the default process group failed"
        if group in dist.distributed_c10d._world.pg_coalesce_state:
            # torch clears it by no exception: the next test's collectives would wait in its list.
            return "the test left a coalescing block of the default process group by an exception"
        if self._keys.bypassed and not held:
            return "the test used the store of the default process group below its own keys"
        return None

    def is_unnumbered(self) -> bool:
        """True if the plugin's group has a backend without sequence numbers."""
        group = self._reference()
        if group is None:
            return False
        return not self.journal.promises(group, name_of(group)).numbered

    def is_users(self) -> bool:
        """True if there is a default group that user code has made."""
        return not self._built and is_initialized()

    def destroy(self) -> None:
        """Give up all groups of this rank."""
        self._store, self._built, self._reference = None, False, _no_group
        self._keys.begin(None, 0)
        if given_up := groups():
            # A group whose peer is dead may raise; torch has forgotten it all the same.
            with contextlib.suppress(RuntimeError):
                end(given_up)
            _free(given_up)

    def _take(self, file: int) -> None:
        if self._file is None:
            self._file = file
            return
        os.dup2(file, self._file, inheritable=False)
        os.close(file)

    def _in_file(self) -> Store:
        assert self._file is not None, "a store in a file came without its descriptor"
        return FileStore(tempfiles.path_of(self._file), self._world.world_size)

    def _build(self, store: Store) -> None:
        world, device = self._world, self._device()
        init_process_group(
            backend=world.backend,
            store=store,
            rank=self._rank,
            world_size=world.world_size,
            device_id=device if self._binds() else None,
        )
        self._built, self._reference = True, weakref.ref(dist.group.WORLD)

    def _device(self) -> torch.device | None:
        """Make the GPU of this rank the current device, and return it."""
        world = self._world
        if world.devices is None:
            return None
        index = world.devices[self._rank]
        getattr(torch, world.device).set_device(index)
        return torch.device(world.device, index)

    def _binds(self) -> bool:
        """Whether the group is bound to the GPU; gloo's would look for communicators there."""
        return any(name in self._world.backend for name in ("nccl", "xccl"))


def _numbered() -> int:
    count: int = dist.distributed_c10d._world.group_count
    return count


def groups() -> list[dist.ProcessGroup]:
    """Every group that this rank is a member of, the default one first."""
    if not is_initialized():
        return []
    return list(dist.distributed_c10d._world.pg_map)


def end(given_up: list[dist.ProcessGroup]) -> None:
    """Remove all groups from torch's registry.

    NCCL's are aborted: their shutdown waits for every kernel that was begun, even one that a dead
    peer will never join. torch aborts all groups between ``ncclGroupStart`` and ``ncclGroupEnd``;
    without these, the aborts of two communicators may wait for each other.

    Source: ProcessGroupNCCL.cpp, "Difference between `abort()` and `shutdown()`";
    pytorch/pytorch#119797.
    """
    if any("nccl" in backends.names_of(group) for group in given_up):
        _abort_process_group()
    else:
        destroy_process_group()


def _free(given_up: list[dist.ProcessGroup]) -> None:
    """Drop references to groups; gloo frees one when the last of its collectives has ended.

    A collective that a peer has not joined may never end, and must not delay the next test: hence
    the thread.
    """
    thread = threading.Thread(target=given_up.clear, name="pytest-ddp free", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
