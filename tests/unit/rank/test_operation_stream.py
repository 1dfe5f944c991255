"""The stream of operations, on a rank that is a whole gloo group by itself."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed import _functional_collectives as functional
from torch.distributed.rendezvous import rendezvous

from pytest_ddp.rank.operations import kernels
from pytest_ddp.rank.operations.operation import Issuer, Operation
from pytest_ddp.rank.operations.process import new_stream
from pytest_ddp.rank.operations.stream import Needs, Operations, Recorder
from pytest_ddp.rank.operations.table import TABLE
from pytest_ddp.rank.operations.wait import WaitKind

ALL = Needs.CPP | Needs.ARGUMENTS | Needs.USES


@pytest.fixture
def stream() -> Iterator[Operations]:
    made = new_stream()
    yield made
    made.record(Recorder())
    made._set(lambda _: ())


@pytest.fixture
def x(tmp_path: Path) -> Iterator[torch.Tensor]:
    """A tensor to communicate, with the default group up."""
    store = FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.ones(2, 3)
    dist.destroy_process_group()


class Log:
    """A subscriber that notes its calls."""

    def __init__(self, name: str = "") -> None:
        self.events: list[str] = []
        self.operations: list[Operation] = []
        self._name = name

    def _note(self, event: str, operation: Operation) -> None:
        self.events.append(f"{self._name}{event} {operation.name}")

    def before(self, operation: Operation) -> None:
        self.operations.append(operation)
        self._note("before", operation)

    def returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        self._note("failed" if error else "returned", operation)

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        self._note("waited", operation)

    def passed_on(self, operation: Operation) -> None:
        self._note("passed_on", operation)

    def dropped(self, operation: Operation) -> None:
        self._note("dropped", operation)


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "all_reduce": lambda x, y: dist.all_reduce(x),
    "all_reduce_coalesced": lambda x, y: dist.all_reduce_coalesced([x]),
    "broadcast": lambda x, y: dist.broadcast(x, 0),
    "reduce": lambda x, y: dist.reduce(x, 0),
    "all_gather": lambda x, y: dist.all_gather([y], x),
    "all_gather_coalesced": lambda x, y: dist.all_gather_coalesced([[y]], [x]),
    "all_gather_into_tensor": lambda x, y: dist.all_gather_into_tensor(y, x),
    "reduce_scatter": lambda x, y: dist.reduce_scatter(y, [x]),
    "reduce_scatter_tensor": lambda x, y: dist.reduce_scatter_tensor(y, x),
    "all_to_all": lambda x, y: dist.all_to_all([y], [x]),
    "all_to_all_single": lambda x, y: dist.all_to_all_single(y, x),
    "gather": lambda x, y: dist.gather(x, [y]),
    "scatter": lambda x, y: dist.scatter(y, [x]),
    "barrier": lambda x, y: dist.barrier(),
    "monitored_barrier": lambda x, y: dist.monitored_barrier(),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("needs", [Needs.NOTHING, Needs.CPP, ALL], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_each_form_is_one_operation(
    stream: Operations, x: torch.Tensor, name: str, needs: Needs
) -> None:
    log = Log()
    sizes: list[int] = []
    end = stream.subscribe(log, needs)
    other: Any = type("Sizes", (), {"before": lambda _, one: sizes.append(one.nbytes)})()
    stream.subscribe(other, needs)
    CALLS[name](x, torch.empty_like(x))
    waits = [] if name == "monitored_barrier" else [f"waited {name}"]
    assert log.events == [f"before {name}", f"returned {name}", *waits]
    (operation,) = log.operations
    assert operation.issuer is Issuer.PYTHON
    assert operation.site is not None
    assert operation.site.code.co_filename == __file__
    assert sizes == [0 if "barrier" in name else 24]
    # Nothing is kept alive.
    assert operation.process_group is operation.given is None
    assert operation.tensors == ()
    end()
    CALLS[name](x, torch.empty_like(x))
    assert len(log.operations) == 1


def test_all_forms_but_messages_are_tried() -> None:
    coalesced = {"all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"}
    not_on_gloo = {"gather_single"}
    tried = CALLS.keys() | coalesced | not_on_gloo
    assert tried == {form.name for form in TABLE if not form.is_message}


@pytest.mark.parametrize("needs", [Needs.CPP, ALL], ids=str)
def test_what_cpp_issues_by_itself(stream: Operations, x: torch.Tensor, needs: Needs) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    log = Log()
    stream.subscribe(log, needs)
    model(x).sum().backward()
    (gradients,) = log.operations
    assert (gradients.issuer, gradients.name) == (Issuer.CPP, "all_reduce")
    assert log.events == ["before all_reduce", "returned all_reduce"]


def test_without_the_need_cpp_is_not_seen(stream: Operations, x: torch.Tensor) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    log = Log()
    stream.subscribe(log)
    model(x).sum().backward()
    assert log.events == []


@pytest.mark.parametrize("needs", [Needs.NOTHING, ALL], ids=str)
def test_a_functional_collective_is_one_operation(
    stream: Operations, x: torch.Tensor, needs: Needs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_kept", [])
    kernels.watch_functional(stream)
    log = Log()
    stream.subscribe(log, needs)
    everyone: Any = dist.group.WORLD
    functional.all_reduce(x, "sum", everyone).sum().item()
    (operation,) = log.operations
    assert (operation.issuer, operation.name) == (Issuer.FUNCTIONAL, "all_reduce")
    assert log.events == ["before all_reduce", "returned all_reduce"]
    kernels._kept[0]._destroy()


def test_the_latest_is_called_first_and_last(stream: Operations, x: torch.Tensor) -> None:
    first, latest = Log("first "), Log("latest ")
    first.events = latest.events
    stream.record(recorder := Recorded(first.events))
    stream.subscribe(first)
    stream.subscribe(latest)
    dist.all_reduce(x)
    assert recorder.events == [
        *("latest before all_reduce", "first before all_reduce", "recorded before"),
        *("recorded returned", "first returned all_reduce", "latest returned all_reduce"),
        *("recorded waited", "first waited all_reduce", "latest waited all_reduce"),
    ]


class Recorded(Recorder):
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def before(self, operation: Operation) -> None:
        self.events.append("recorded before")

    def returned(self, operation: Operation, error: BaseException | None) -> None:
        self.events.append("recorded returned")

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        self.events.append("recorded waited")


class Refusing:
    def before(self, operation: Operation) -> BaseException:
        return LookupError("not this one")


@pytest.mark.parametrize("needs", [Needs.NOTHING, ALL], ids=str)
def test_what_before_returns_is_raised_by_the_users_call(
    stream: Operations, x: torch.Tensor, needs: Needs
) -> None:
    inner, outer = Log(), Log()
    stream.subscribe(inner)
    stream.subscribe(Refusing(), needs)
    stream.subscribe(outer)
    number = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    with pytest.raises(LookupError, match="not this one"):
        dist.all_reduce(x)
    assert outer.events == ["before all_reduce", "failed all_reduce"]
    # Whoever is called at the operator is called after those at the method.
    assert inner.events == ([] if needs is Needs.NOTHING else outer.events)
    assert dist.group.WORLD._get_sequence_number_for_group() == number  # type: ignore[union-attr]


def test_an_interrupt_while_a_subscriber_holds_the_thread_ends_the_issue(
    stream: Operations, x: torch.Tensor
) -> None:
    log = Log()

    class Interrupted:
        def before(self, operation: Operation) -> None:
            raise KeyboardInterrupt

    stream.subscribe(Interrupted())
    stream.subscribe(log)
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(x)
    assert log.events == ["before all_reduce", "failed all_reduce"]
    assert not stream.local.is_announcing


def test_what_a_subscriber_raises_is_its_own_mistake(stream: Operations, x: torch.Tensor) -> None:
    reported: list[str] = []
    stream.report = reported.append

    class Mistaken:
        def before(self, operation: Operation) -> None:
            raise KeyError("mine")

    stream.subscribe(Mistaken())
    dist.all_reduce(x)
    assert x.tolist() == [[1.0] * 3] * 2
    (text,) = reported
    assert "Mistaken has raised in before:" in text
    assert "KeyError: 'mine'" in text


def test_what_a_subscriber_issues_is_announced_to_nobody(
    stream: Operations, x: torch.Tensor
) -> None:
    log = Log()

    class Issuing:
        def before(self, operation: Operation) -> None:
            with stream.exchange("gather"):
                dist.barrier()
            dist.barrier()

        returned = waited = lambda self, *_: dist.barrier()

    stream.subscribe(log, ALL)
    stream.subscribe(Issuing())
    dist.all_reduce(x)
    dist.monitored_barrier()
    with stream.exchange("barrier"):
        pass
    names = [operation.name for operation in log.operations]
    assert names == ["all_reduce", "monitored_barrier", "ddp.barrier"]


def test_what_before_returns_besides_exceptions_is_nothing(
    stream: Operations, x: torch.Tensor
) -> None:
    log = Log()
    stream.subscribe(log)
    stream.subscribe(type("Odd", (), {"before": lambda self, operation: True})())
    dist.all_reduce(x)
    assert log.events == ["before all_reduce", "returned all_reduce", "waited all_reduce"]


def test_an_error_of_torch_ends_the_issue(stream: Operations, x: torch.Tensor) -> None:
    log = Log()
    stream.subscribe(log)
    with pytest.raises(RuntimeError):
        dist.all_gather([x], torch.ones(7))
    assert log.events == ["before all_gather", "failed all_gather"]
    assert not [one for one in gc.get_referrers(log.operations[0]) if isinstance(one, dict)]


def test_uses_of_a_work(stream: Operations, x: torch.Tensor) -> None:
    log = Log()
    stream.subscribe(log, Needs.USES)
    for use in (lambda work: work.wait(), lambda work: work.get_future().wait(), lambda work: None):
        work = dist.all_reduce(x, async_op=True)
        use(work)
        del work
    ends = [event.partition(" ")[0] for event in log.events]
    issued = ["before", "returned"]
    assert ends == [*issued, "waited", *issued, "passed_on", "waited", *issued, "dropped"]


def test_a_name_of_torch_is_put_back(stream: Operations, x: torch.Tensor) -> None:
    classes = dist.ProcessGroup, dist.Work, torch.Future
    before = [dict(vars(one)) for one in classes]
    end = stream.subscribe(Log(), ALL)
    assert all(dict(vars(one)) != those for one, those in zip(classes, before, strict=True))
    end()
    assert [dict(vars(one)) for one in classes] == before


# ------------------------------------------------------------------ waits


def test_waits_of_threads_have_their_kind(stream: Operations, x: torch.Tensor) -> None:
    seen: list[Any] = []
    here = threading.get_ident()

    class Looking:
        def before(self, operation: Operation) -> None:
            with stream.holding("on purpose"):
                look()

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(stream.waits()[here]))
        thread.start()
        thread.join()

    look()
    end = stream.subscribe(Looking())
    work = dist.all_reduce(x, async_op=True)
    end()
    recorder: Any = Recorded([])
    recorder.waits = lambda _: look()
    stream.record(recorder)
    assert work is not None
    work.wait()
    dist.monitored_barrier()
    look()
    kinds = [wait.kind for wait in seen]
    assert kinds[1:4] == [WaitKind.HELD, *[WaitKind.COLLECTIVE] * 2]
    # It waits for the thread that looks: for its begin, or for its end.
    assert {kinds[0], kinds[4]} <= {WaitKind.LOCK, WaitKind.THREAD, WaitKind.UNKNOWN}
    assert seen[1].words == "on purpose"
    assert [wait.operation.name for wait in seen[2:4]] == ["all_reduce", "monitored_barrier"]


def test_a_thread_that_waits_for_a_rendezvous_waits_for_a_store(stream: Operations) -> None:
    def meet() -> None:
        url = "tcp://127.0.0.1:0?rank=0&world_size=2"
        with contextlib.suppress(dist.DistError):
            next(rendezvous(url, timeout=timedelta(seconds=2)))

    thread = threading.Thread(target=meet)
    thread.start()
    kinds = set()
    while thread.is_alive():
        kinds.add(stream.waits().get(thread.ident or 0))
    thread.join()
    assert WaitKind.STORE in {wait.kind for wait in kinds if wait is not None}


def test_an_exchange_of_the_fixture_is_in_the_stream(stream: Operations) -> None:
    log = Log()
    stream.subscribe(log, ALL)
    with stream.exchange("gather"):
        wait = stream.waits()[threading.get_ident()]
    assert wait.kind is WaitKind.FIXTURE
    assert log.events == ["before ddp.gather", "returned ddp.gather"]
