"""The object behind the ``ddp`` fixture, for a test inside a rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pytest_ddp.protocol.messages import FixtureOperation
from pytest_ddp.system.stdlib import base64, pickle, threading

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Transport = Callable[[FixtureOperation, int | None, str], tuple[str, ...]]
"""Sends (operation, source, payload), and waits for the payloads of all ranks."""


EnterPhase = Callable[[str], AbstractContextManager[None]]
"""Makes a context in which the test is in the phase with this name."""


class DdpError(RuntimeError):
    """An operation of the ``ddp`` fixture that can never complete, and why."""

    ddp_code = "DDP-051"


class Ddp:
    """The place of a rank in its test, and a side channel between the ranks.

    The place belongs to the process, for its life: what a fixture wider than a test reads here
    stays true as long as the fixture is set up.

    The operations go through the pytest process and not through the group under test: they work
    when that group is broken, and name a rank that never arrives. Objects are sent pickled from
    rank to rank; the pytest process never unpickles them.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        backend: str,
        device: str,
        device_index: int | None,
        transport: Transport,
        enter_phase: EnterPhase,
    ) -> None:
        self.rank = rank
        """Rank in the default process group, 0 to ``world_size - 1``."""
        self.world_size = world_size
        """Number of ranks of this test."""
        self.local_rank = local_rank
        """Number of this rank among those on its machine, as ``LOCAL_RANK`` has it."""
        self.backend = backend
        """The backend as torch takes it: ``"gloo"``, ``"nccl"``, ``"cpu:gloo,cuda:nccl"``."""
        self._device = device
        self._device_index = device_index
        self._transport = transport
        self._enter_phase = enter_phase
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ddp rank {self.rank} of {self.world_size}, {self.backend}, {self._on}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            words = f"ddp has no {name}"
            collectives = sys.modules.get("torch.distributed")
            if not name.startswith("_") and callable(getattr(collectives, name, None)):
                words += (
                    f": call torch.distributed.{name},\nwhich works on the test's process group"
                )
            raise AttributeError(words, name=name, obj=self)

    @property
    def _on(self) -> str:
        return (
            self._device if self._device_index is None else f"{self._device}:{self._device_index}"
        )

    @property
    def device(self) -> torch.device:
        """``cuda:N`` or ``xpu:N`` for a rank with a GPU; else ``cpu``, or ``meta``."""
        # Only ranks should pay for this import: any file may import this module for annotations.
        import torch  # noqa: PLC0415

        if self._device_index is None:
            return torch.device(self._device)
        return torch.device(self._device, self._device_index)

    def barrier(self) -> None:
        """Wait until every rank has called it.

        Raises:
            DdpError: a rank ended its test, died, or is at another operation.
        """
        self._exchange(FixtureOperation.BARRIER, None, "")

    def gather(self, obj: T) -> list[T]:
        """Every rank's ``obj`` in rank order, on every rank.

        Raises:
            TypeError: it cannot be pickled.
            DdpError: as for :meth:`barrier`.
        """
        return self._gather(FixtureOperation.GATHER, obj)

    @overload
    def broadcast(self, obj: None = None, source: int = 0) -> Any: ...
    @overload
    def broadcast(self, obj: T | None, source: int = 0) -> T: ...
    def broadcast(self, obj: Any = None, source: int = 0) -> Any:
        """The ``obj`` of rank ``source``, on every rank; other ranks' is ignored.

        Raises:
            ValueError: there is no rank ``source``.
            TypeError: its ``obj`` cannot be pickled.
            DdpError: as for :meth:`barrier`, or ranks name different sources.
        """
        if not 0 <= source < self.world_size:
            raise ValueError(f"source={source}, but the ranks are 0 to {self.world_size - 1}")
        payload = _pack(FixtureOperation.BROADCAST, obj) if self.rank == source else ""
        return _unpack(self._exchange(FixtureOperation.BROADCAST, source, payload)[source])

    def assert_same(self, value: Any) -> None:
        """Fail unless ``value`` is equal on all ranks.

        A value is a tensor, a module, an optimizer or anything else with a ``state_dict``, a numpy
        array, or plain data and objects that contain any of these. Equal means: the same dtypes,
        shapes, device types and elements; NaN equals NaN. For a DTensor, replicas of the same shard
        are compared. Ranks exchange only digests, and then what differs.

        Raises:
            AssertionError: it is not equal; the text names the first part that differs, its index,
                and what each rank has there.
            TypeError: a part can neither be taken apart nor pickled.
            DdpError: as for :meth:`barrier`.
        """
        from pytest_ddp.rank import equality  # noqa: PLC0415 - imports torch

        gather = partial(self._gather, FixtureOperation.ASSERT_SAME)
        equality.assert_close(gather, self.rank, value, (0, 0), "assert_same")

    def assert_close(
        self, value: Any, *, rtol: float | None = None, atol: float | None = None
    ) -> None:
        """Fail unless the numbers in ``value`` are close on all ranks, and all else is equal.

        Elements are close if ``|a - b| <= atol + rtol * |b|``, where b is the lowest rank's;
        the default tolerances are those of ``torch.testing.assert_close`` for the dtype.

        Raises:
            ValueError: one tolerance is given without the other.
            AssertionError, TypeError, DdpError: as for :meth:`assert_same`.
        """
        from pytest_ddp.rank import equality  # noqa: PLC0415 - imports torch

        if (rtol is None) != (atol is None):
            raise ValueError("ddp.assert_close: give both rtol and atol, or neither")
        limits = None if rtol is None or atol is None else (rtol, atol)
        gather = partial(self._gather, FixtureOperation.ASSERT_CLOSE)
        equality.assert_close(gather, self.rank, value, limits, "assert_close")

    def assert_differ(self, value: Any) -> None:
        """Fail if any two ranks have an equal ``value``: a seed, a shard, a batch.

        Raises:
            AssertionError, TypeError, DdpError: as for :meth:`assert_same`.
        """
        from pytest_ddp.rank import equality  # noqa: PLC0415 - imports torch

        equality.assert_differ(partial(self._gather, FixtureOperation.ASSERT_DIFFER), value)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Name a part of the test, a ``with`` block, for the text of a failure.

        When this rank dies or hangs in the block, the text says so: "died of SIGKILL in call:
        warm-up". Phases may be nested, and cost a microsecond or two. torch's own steps (DDP
        construction, compilation, backward and so on) are named without it.

        Raises:
            ValueError: ``name`` is empty.
        """
        if not name.strip():
            raise ValueError(f"ddp.phase({name!r}): a phase needs a name that can be shown")
        return self._enter_phase(name)

    def _gather(self, operation: FixtureOperation, obj: Any) -> list[Any]:
        payloads = self._exchange(operation, None, _pack(operation, obj))
        return [_unpack(payload) for payload in payloads]

    def _exchange(
        self, operation: FixtureOperation, source: int | None, payload: str
    ) -> tuple[str, ...]:
        with self._lock:
            return self._transport(operation, source, payload)


_current: Ddp | None = None


def current() -> Ddp:
    """The running test's :class:`Ddp`, for code without access to the fixture.

    Raises:
        DdpError: no ddp test is running in this process.
    """
    if _current is None:
        raise DdpError(
            "no ddp test is running in this process; mark the test with\n"
            "@pytest.mark.ddp(world_size=...). Fixtures that request ddp are for such tests"
        )
    return _current


def set_current(ddp: Ddp | None) -> None:
    """Set what :func:`current` returns; for the rank's runner only."""
    global _current
    _current = ddp


def _pack(operation: FixtureOperation, obj: Any) -> str:
    try:
        return base64.b64encode(pickle.dumps(obj)).decode("ascii")
    except MemoryError:
        raise
    # pickle, or the object's own methods, may raise anything.
    except Exception as error:
        trace = error.__traceback__
        raise TypeError(
            f"ddp.{operation}: an object of type {type(obj).__qualname__} cannot be pickled:\n"
            f"{error}.\nPass data: tensors, numbers, a state_dict"
        ) from (error if trace is not None and trace.tb_next is not None else None)


def _unpack(payload: str) -> Any:
    return pickle.loads(base64.b64decode(payload))
