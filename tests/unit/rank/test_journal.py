"""The journal of one rank that is a whole gloo group by itself."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from pytest_ddp.rank.groups.backends import NO_PROMISES, Promises
from pytest_ddp.rank.groups.journal import CallJournal
from pytest_ddp.rank.operations.describing import ends as _ends
from pytest_ddp.rank.operations.operation import Description, Issuer, Operation, Site
from pytest_ddp.rank.operations.origins import user_frame
from pytest_ddp.rank.operations.process import new_stream
from pytest_ddp.rank.operations.table import BY_METHOD, BY_NAME
from pytest_ddp.rank.operations.works import OperationsByWork

_names = itertools.count()
WRAPPED = (*BY_METHOD, "_set_group_name")


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> CallJournal:
    """A journal that sits on torch's methods for one test only."""
    for name in filter(partial(hasattr, dist.ProcessGroup), WRAPPED):
        # Written back as it was, so that what the journal puts there goes away again.
        monkeypatch.setattr(dist.ProcessGroup, name, getattr(dist.ProcessGroup, name))
    monkeypatch.setattr(dist.Work, "wait", dist.Work.wait)
    operations = new_stream()
    return CallJournal(operations)


@pytest.fixture
def group(journal: CallJournal, tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    store = FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    journal.begin()
    default = dist.group.WORLD
    assert default is not None
    yield default
    dist.destroy_process_group()


@pytest.fixture
def x(group: dist.ProcessGroup) -> torch.Tensor:
    """A tensor to communicate, with the default group up."""
    return torch.ones(2, 3)


def line_of(text: str) -> int:
    """The line of this file that holds the text, and is not a call of this function."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [n for n, line in enumerate(lines, 1) if text in line and "line_of" not in line]
    return found


def only(journal: CallJournal) -> Operation:
    (call,) = journal.calls
    return call


def test_call_records_what_was_asked(journal: CallJournal, x: torch.Tensor) -> None:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)  # the asking line
    call = only(journal)
    assert (call.group, call.number, call.name) == ("0", 1, "all_reduce")
    assert (call.numel, call.dtype, call.reduce_op) == (6, torch.float32, "MAX")
    assert (call.root, call.tag) == (None, None)
    assert str(call.site) == f"{__file__}:{line_of('# the asking line')}"


def test_root_of_a_broadcast(journal: CallJournal, x: torch.Tensor) -> None:
    dist.broadcast(x, src=0)
    assert (only(journal).name, only(journal).root, only(journal).reduce_op) == (
        "broadcast",
        0,
        None,
    )


def test_uneven_operations_have_no_size(journal: CallJournal, x: torch.Tensor) -> None:
    dist.all_gather([torch.empty_like(x)], x)
    dist.barrier()
    assert [call.name for call in journal.calls] == ["all_gather", "barrier"]
    assert [(call.numel, call.dtype) for call in journal.calls] == [
        (None, torch.float32),
        (None, None),
    ]


def coalesced(form: Callable[..., Any], *tensors: tuple[torch.Tensor, ...]) -> None:
    untyped: Any = dist
    with untyped._coalescing_manager():
        for each in tensors:
            form(*each)


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "all_gather": lambda x, y: dist.all_gather([y], x),
    "reduce_scatter": lambda x, y: dist.reduce_scatter(y, [x]),
    "all_to_all": lambda x, y: dist.all_to_all([y], [x]),
    "all_to_all_single": lambda x, y: dist.all_to_all_single(y, x),
    "all_gather_coalesced": lambda x, y: dist.all_gather_coalesced([[y]], [x]),
    "all_reduce_coalesced": lambda x, y: dist.all_reduce_coalesced([x]),
    "all_gather_into_tensor_coalesced": lambda x, y: coalesced(dist.all_gather_into_tensor, (y, x)),
    "reduce_scatter_tensor_coalesced": lambda x, y: coalesced(dist.reduce_scatter_tensor, (y, x)),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("operation", FORMS)
def test_what_goes_to_each_rank_is_noted(
    journal: CallJournal, x: torch.Tensor, operation: str
) -> None:
    FORMS[operation](x, torch.empty_like(x))
    noted = only(journal)
    one = (((6, torch.float32),),)
    assert (noted.name, noted.sends, noted.receives) == (operation, one, one)
    assert noted.dtype is torch.float32


def test_functional_collective_is_noted_once_it_is_issued(
    journal: CallJournal, group: dist.ProcessGroup, x: torch.Tensor
) -> None:
    options = SimpleNamespace(reduceOp=dist.ReduceOp.MAX, rootRank=None)
    describe = journal.operations.describer.of(
        BY_NAME["all_reduce"], "allreduce", Issuer.FUNCTIONAL
    )
    issued = describe(group, ([x], options), {})
    journal.before(issued)
    assert not journal.forms
    journal.returned(issued, None)
    (form,) = journal.forms
    assert (form.group, form.number, form.name, form.numel, form.reduce_op) == (
        *("0", 1, "all_reduce", 6),
        "MAX",
    )
    # No thread of Python waits for it.
    assert not journal.calls
    first = dict(journal.what)
    journal.begin()
    assert not journal.forms
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert journal.what == first


def test_wrong_arguments_are_left_to_torch(
    journal: CallJournal, group: dist.ProcessGroup, x: torch.Tensor
) -> None:
    wrong: Any = group
    with pytest.raises(TypeError, match="incompatible function arguments"):
        wrong.allgather([], 3)
    assert (only(journal).sends, only(journal).receives) == ((), ())


def test_tensor_that_each_rank_has_gives_the_size(journal: CallJournal, x: torch.Tensor) -> None:
    dist.gather(x, [torch.empty_like(x)], dst=0)
    dist.scatter(torch.empty_like(x), [x], src=0)
    assert [call.name for call in journal.calls] == ["gather", "scatter"]
    assert {(call.numel, call.dtype) for call in journal.calls} == {(6, torch.float32)}


def test_asynchronous_calls_count_as_well(journal: CallJournal, x: torch.Tensor) -> None:
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    assert only(journal).number == 1
    assert journal.operations.waiting == {}
    work.wait()
    assert journal.operations.waiting == {}


def test_numbers_run_on_and_begin_forgets_the_calls(
    journal: CallJournal, x: torch.Tensor, group: dist.ProcessGroup
) -> None:
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    assert [call.number for call in journal.calls] == [1, 2]
    assert journal.collectives(group) == 2
    journal.begin()
    assert not journal.calls
    assert journal.what == journal.where == {}
    dist.all_reduce(x)
    assert only(journal).number == 3


def test_groups_are_counted_apart(
    journal: CallJournal, x: torch.Tensor, group: dist.ProcessGroup
) -> None:
    other: Any = dist.new_group([0])
    journal.begin()
    before = journal.collectives(other)
    dist.all_reduce(x, group=other)
    assert only(journal).group == other.group_name != group.group_name
    assert journal.collectives(other) == before + 1
    assert set(journal.what) == {other.group_name}


# ------------------------------------------------------------------ digests


def digests(journal: CallJournal, ask: Any) -> tuple[int, int]:
    """What the journal makes of one collective, as if it were the first."""
    journal.begin()
    number = len(journal.calls)
    ask()
    assert len(journal.calls) == number + 1
    return journal.what["0"], journal.where["0"]


def renumbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every collective have the same number, so that digests hold the rest alone."""
    monkeypatch.setattr("pytest_ddp.rank.groups.journal._issued", lambda group: 0)


def test_digest_of_the_same_question_is_the_same(
    journal: CallJournal, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    renumbered(monkeypatch)
    first, again = (digests(journal, lambda: dist.all_reduce(x)) for _ in range(2))
    assert first == again


def test_digest_of_lines_alone_differs_with_the_line(
    journal: CallJournal, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    renumbered(monkeypatch)
    what, where = digests(journal, lambda: dist.all_reduce(x))
    other_what, other_where = digests(journal, lambda: dist.all_reduce(x))
    assert what == other_what
    assert where != other_where


@pytest.mark.parametrize(
    "other",
    [
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        lambda x: dist.all_reduce(x[0]),
        lambda x: dist.all_reduce(x.int()),
        lambda x: dist.broadcast(x, 0),
    ],
    ids=["operation", "size", "dtype", "collective"],
)
def test_digest_differs_with_the_question(
    journal: CallJournal, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, other: Any
) -> None:
    renumbered(monkeypatch)
    sums, unlike = (digests(journal, lambda ask=ask: ask(x))[0] for ask in (dist.all_reduce, other))
    assert sums != unlike


def test_uneven_sizes_are_no_other_question(
    journal: CallJournal, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ranks may ask for unlike sizes, of one dtype, and the group is still in step.
    renumbered(monkeypatch)

    def gather(x: torch.Tensor) -> tuple[int, int]:
        return digests(journal, lambda: dist.all_gather([torch.empty_like(x)], x))

    (what, where), (longer, elsewhere), (other, _) = map(gather, (x, x[0], x.int()))
    assert what == longer != other
    assert where != elsewhere


def test_digest_depends_on_the_order(journal: CallJournal, x: torch.Tensor) -> None:
    dist.all_reduce(x)
    dist.barrier()
    first = dict(journal.what)
    journal.begin()
    dist.barrier()
    dist.all_reduce(x)
    assert journal.what != first


# ------------------------------------------------------------------ waits


def test_waiting_thread_is_known_while_it_waits(
    journal: CallJournal, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[int, Operation]] = []
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    monkeypatch.setattr(journal, "waits", lambda _: seen.append(dict(journal.operations.waiting)))
    work.wait()
    assert [list(state) for state in seen] == [[threading.get_ident()]]
    assert next(iter(seen[0].values())).name == "all_reduce"
    assert journal.operations.waiting == {}


# ------------------------------------------------------------------ places


def code(file: str, name: str) -> CodeType:
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}(go):\n    return go()\n", file, "exec"), scope)
    made: CodeType = scope[name].__code__
    return made


def nested(*files: str) -> Any:
    """The frame that is found below calls through these files, outermost first."""

    def find() -> Any:
        return user_frame(sys._getframe(1))

    go: Callable[[], Any] = find
    for file in reversed(files):
        # Names differ because code that is alike is equal, whatever its file.
        go = partial(FunctionType(code(file, f"through_{next(_names)}"), {}), go)
    return go()


TORCH = str(Path(torch.__file__).parent / "distributed/made.py")
PACKAGE = str(Path(torch.__file__).parent.parent / "some_package/made.py")
OURS = str(Path(__file__).parents[3] / "pytest_ddp/rank/made.py")


@pytest.mark.parametrize("below", [(), (TORCH,), (OURS,), (PACKAGE,), (PACKAGE, TORCH)], ids=str)
def test_innermost_frame_of_the_user_is_found(below: tuple[str, ...]) -> None:
    found = nested("/home/me/test_sum.py", *below)
    assert found is not None
    assert found.f_code.co_filename == "/home/me/test_sum.py"


def test_site_reads_as_file_and_line() -> None:
    assert str(Site(code("/src/a.py", "f"), 12)) == "/src/a.py:12"


# ------------------------------------------------------------- backends by their promises


def test_messages_are_not_taken_off_a_number_that_does_not_count_them(
    journal: CallJournal, group: dist.ProcessGroup, x: torch.Tensor
) -> None:
    as_of_nccl = Promises(numbered=True, messages_numbered=False, recorded=False)
    journal._promises[group.group_name] = as_of_nccl
    dist.all_reduce(x)
    before = journal.collectives(group)
    journal._messages[group.group_name] += 2
    assert journal.collectives(group) == before
    assert journal.count(group) == before + 2


def test_without_numbers_calls_count_for_the_next_test_and_for_no_verdict(
    journal: CallJournal, group: dist.ProcessGroup, x: torch.Tensor
) -> None:
    name = group.group_name
    journal._promises[name] = NO_PROMISES
    digests = []
    for _ in range(2):
        dist.all_reduce(x)
        digests.append(journal.what[name])
    assert digests[0] != digests[1]
    assert journal.count(group) == 2
    assert journal.collectives(group) == 0
    assert [call.number for call in journal.calls] == [0, 0]


# ------------------------------------------------------------------ messages


@pytest.mark.parametrize(
    ("args", "kwargs", "ends"),
    [
        (("x", 1, 2), {}, (1, 2)),
        (("x", 1), {"tag": 2}, (1, 2)),
        (("x",), {"dstRank": 1, "tag": 2}, (1, 2)),
        ((), {"tensors": "x", "srcRank": 1, "tag": 2}, (1, 2)),
        (("x", 2), {}, (-1, 2)),
    ],
)
def test_peer_and_tag_are_read_however_they_are_given(
    args: tuple[Any, ...], kwargs: dict[str, Any], ends: tuple[int, int]
) -> None:
    assert _ends(args, kwargs) == ends


def test_a_message_that_torch_refuses_is_not_counted(
    journal: CallJournal, group: dist.ProcessGroup
) -> None:
    with pytest.raises(RuntimeError):
        group.send([torch.zeros(2, 2).t()], 0, 0)
    with pytest.raises(RuntimeError):
        group.recv([torch.zeros(2, 2).t()], 0, 0)
    dist.barrier()
    assert not +journal.sent
    assert not +journal.received
    assert not journal.messages.order()
    assert journal.collectives(group) == 1


def test_messages_of_a_fixture_are_distinguished_from_those_of_the_test(
    journal: CallJournal,
) -> None:
    journal.sent["0", 1, 0] = 1
    with journal.of_wide_fixture():
        journal.sent["0", 1, 0] += 1
        with journal.of_wide_fixture():
            journal.received["0", 1, 3] += 2
    journal.sent["0", 1, 0] += 1
    assert journal.wide == {("send", "0", 1, 0): 1, ("recv", "0", 1, 3): 2}
    journal.begin()
    assert not journal.wide


class _Work:
    """What a weak reference can point to, as to a ``Work``."""


def _message(group: str) -> Operation:
    site = Site(_message.__code__, 1)
    described = Description(BY_NAME["send"], "send", root=1, tag=0, site=site)
    return Operation(None, group, described, Issuer.PYTHON)


def test_only_works_that_were_dropped_are_lost() -> None:
    works, kept, dropped, waited_for = OperationsByWork(), _Work(), _Work(), _Work()
    waited = _message("waited for")
    works.put(kept, _message("kept"))
    works.put(waited_for, waited)
    works.put(dropped, _message("dropped"))
    waited.is_waited = True
    assert works.lost() == []
    del dropped, waited_for
    assert [message.group for message in works.lost()] == ["dropped"]
    works.begin()
    del kept
    assert works.lost() == []


def test_a_lost_work_is_found_though_another_has_its_number() -> None:
    works, kept = OperationsByWork(), _Work()
    works.put(kept, _message("lost"))
    # Now its number is another one's.
    works.put(kept, _message("later"))
    found = works.get(kept)
    assert found is not None
    assert found.group == "later"
    assert [message.group for message in works.lost()] == ["lost"]
