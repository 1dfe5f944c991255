"""A ``multiprocessing`` whose n-th process is rank n: no process is started.

Each rank runs the harness, but the tasks come from rank 0, as spawned processes would have got them
from the one main process, and each rank runs its own task at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from pytest_ddp.extensions.adopt.ranks import harness_environment
from pytest_ddp.fixture import Ddp
from pytest_ddp.system.stdlib import os

Task = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]

_BY_NAME = ("Pool", "Process", "Queue", "set_start_method", "get_context")
"""Names that a module may have imported from ``multiprocessing``."""
_queues: list[OwnQueue] = []
"""Queues of the running test, in the order in which every rank makes them."""


class Names:
    """The names of modules that refer to ``multiprocessing``, and their replacements."""

    def __init__(self, stand_in: Multiprocessing, real: Any) -> None:
        mine: list[tuple[Any, Any]] = [(real, stand_in), (multiprocessing, stand_in)]
        for of in (real, multiprocessing):
            mine += [(getattr(of, name), getattr(stand_in, name)) for name in _BY_NAME]
        self._stand_ins = mine
        self._found: list[tuple[dict[str, Any], str, Any, Any]] = []

    def find(self, functions: Iterable[FunctionType]) -> None:
        """Search the global names of these functions."""
        modules = {id(function.__globals__): function.__globals__ for function in functions}
        for names in modules.values():
            for name, value in names.items():
                stand_in = next((mine for known, mine in self._stand_ins if known is value), None)
                if stand_in is not None:
                    self._found.append((names, name, value, stand_in))

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """In the block, the names refer to the stand-in."""
        self._set(stand_in=True)
        try:
            yield
        finally:
            self._set(stand_in=False)

    @contextlib.contextmanager
    def as_ever(self) -> Iterator[None]:
        """In the block, inside that of :meth:`replaced`, the names refer to the originals."""
        self._set(stand_in=False)
        try:
            yield
        finally:
            self._set(stand_in=True)

    def _set(self, *, stand_in: bool) -> None:
        for names, name, real, mine in self._found:
            names[name] = mine if stand_in else real


class Multiprocessing:
    """Stands in for the module while a test runs.

    Args:
        ddp: the ``ddp`` fixture of this rank.
        real: the module.
        outside: variables of a process that is no rank; None for those that are not set.
    """

    def __init__(self, ddp: Ddp, real: Any, outside: Mapping[str, str | None]) -> None:
        self._ddp = ddp
        self._real = real
        self._outside = outside
        self._started: list[RankAsProcess] = []
        self.names = Names(self, real)
        _queues.clear()
        self.has_run = False
        """Whether a process or a pool was created and has run something."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_context(self, method: str | None = None) -> Multiprocessing:
        """Return this stand-in, whatever the start method."""
        return self

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """Does nothing, as no process is started."""

    def Pool(self, processes: int | None = None, *_: Any, **__: Any) -> PoolOfRanks:  # noqa: N802
        """A pool of all ranks."""
        return PoolOfRanks(self, processes)

    def Process(self, *_: Any, **options: Any) -> RankAsProcess:  # noqa: N802
        """A process that stands for one rank."""
        return RankAsProcess(self, options)

    def Queue(self, *_: Any) -> OwnQueue:  # noqa: N802
        """A queue that is local to a rank."""
        return OwnQueue()

    def start(self, process: RankAsProcess) -> None:
        """Note that a process has to run."""
        self._started.append(process)

    def run_started(self) -> None:
        """Run the started processes, after all of them were started."""
        started, self._started = self._started, []
        if not started:
            return
        tasks = [process.task for process in started]
        own = started[self._ddp.rank] if len(started) == self._ddp.world_size else started[0]
        try:
            self.perform(tasks, {})
        except SystemExit as ended:
            code = ended.code
            own.exitcode = code if isinstance(code, int) else int(code is not None)

    def perform(self, tasks: Sequence[Task], set_before: dict[str, str]) -> Any:
        """Run this rank's task, from the list of rank 0.

        Args:
            tasks: one for each rank; only the list of rank 0 is used.
            set_before: variables that earlier tasks set in this process; this task's are added.

        Raises:
            RuntimeError: the number of tasks is not the world size.
        """
        ddp = self._ddp
        if len(tasks) != ddp.world_size:
            raise RuntimeError(
                f"the harness starts {len(tasks)} processes for a test of world size "
                f"{ddp.world_size}: run it without --ddp-adopt=testcase, or set "
                f"world_size={len(tasks)}"
            )
        self.has_run = True
        function, args, kwargs = ddp.broadcast(list(tasks) if ddp.rank == 0 else None)[ddp.rank]
        with harness_environment.inherited(ddp), self.names.as_ever():
            harness_environment.change(self._outside)
            os.environ.update(set_before)
            before = dict(os.environ)
            try:
                return function(*args, **kwargs)
            finally:
                now = os.environ.items()
                set_before.update({name: text for name, text in now if before.get(name) != text})

    def gather(self, result: Any) -> list[Any]:
        """The results of all ranks, as the main process would get them."""
        return self._ddp.gather(result)


class PoolOfRanks:
    """Stands in for a pool, as long as the harness keeps it."""

    def __init__(self, module: Multiprocessing, processes: int | None) -> None:
        self._module = module
        self._processes = processes
        self._environment: dict[str, str] = {}
        self.is_over = False
        """Whether the pool was closed, or a rank has failed in it."""

    def use(self, module: Multiprocessing) -> None:
        """Attach the pool to the running test."""
        self._module = module

    def starmap_async(
        self, function: Callable[..., Any], args: Iterable[Sequence[Any]], *_: Any
    ) -> MethodResult:
        """Each rank calls the function with its own arguments."""
        return MethodResult(self, [(function, one, {}) for one in args])

    def starmap(
        self, function: Callable[..., Any], args: Iterable[Sequence[Any]], *_: Any
    ) -> list[Any]:
        """Do as :meth:`starmap_async`, and wait."""
        return self.starmap_async(function, args).get()

    def map(self, function: Callable[..., Any], args: Iterable[Any], *_: Any) -> list[Any]:
        """Do as :meth:`starmap`, with one argument."""
        return self.starmap(function, [(one,) for one in args])

    def perform(self, tasks: Sequence[Task]) -> list[Any]:
        """Run this rank's task; return the results of all ranks."""
        if self.is_over:  # The end of a harness whose test has failed: peers are elsewhere.
            return []
        try:
            return self._module.gather(self._module.perform(tasks, self._environment))
        except BaseException:
            self.is_over = True
            raise

    def close(self) -> None:
        """Accept no more tasks."""
        self.is_over = True

    def terminate(self) -> None:
        """Do as :meth:`close`."""
        self.is_over = True

    def join(self) -> None:
        """Does nothing: all tasks have ended when ``get`` returned."""

    def __enter__(self) -> PoolOfRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MethodResult:
    """The result of a pool, which runs the tasks in :meth:`get`."""

    def __init__(self, pool: PoolOfRanks, tasks: Sequence[Task]) -> None:
        self._pool = pool
        self._tasks = tasks

    def get(self, timeout: float | None = None) -> list[Any]:
        """Run the tasks; ``timeout`` is ignored, as the test has its own."""
        return self._pool.perform(self._tasks)


class RankAsProcess:
    """Stands in for a process; its task runs when the harness first waits for it."""

    daemon = False

    def __init__(self, module: Multiprocessing, options: dict[str, Any]) -> None:
        self._module = module
        self.name = options.get("name")
        self.task: Task = (options["target"], options.get("args", ()), options.get("kwargs") or {})
        self.exitcode = 0
        """Always 0: another rank reports its failure itself."""

    def start(self) -> None:
        """Note that the task has to run."""
        self._module.start(self)

    def is_alive(self) -> bool:
        """Run the task, and return False: it has ended then."""
        self._module.run_started()
        return False

    def join(self, timeout: float | None = None) -> None:
        """Run the tasks of all processes that were started, this one's among them."""
        self._module.run_started()

    def terminate(self) -> None:
        """Does nothing, as the task has ended when another method has returned."""

    kill = close = terminate


class OwnQueue:
    """Stands in for the queue by which a process sends the reason of a skip to the main process."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        _queues.append(self)

    def __reduce__(self) -> tuple[Callable[[int], OwnQueue], tuple[int]]:
        # Unpickled on another rank, it is that rank's own queue.
        return _queue, (_queues.index(self),)

    def put(self, item: Any, *_: Any) -> None:
        """Append the item."""
        self._items.append(item)

    def get(self, *_: Any) -> Any:
        """The oldest item."""
        return self._items.pop(0)

    def empty(self) -> bool:
        """Whether no item is left."""
        return not self._items


def _queue(number: int) -> OwnQueue:
    return _queues[number]
