"""Messages that ranks send beside their reports reach pytest, once."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddp.outcome.outcome import MessageRoute, RankOutcome, UnmatchedMessages
from pytest_ddp.protocol.messages import Change, Finished, Leak, Warned
from pytest_ddp.verdict.notices import DdpWarning, Messages
from tests.unit.handmade import NODEID, done, passing, run
from tests.unit.standings import code_line


class FakeConfig:
    """Stands in for pytest's config: hook, warnings and terminal."""

    def __init__(self) -> None:
        self.hook = self
        self.pytest_warning_recorded = self
        self.recorded: list[dict[str, Any]] = []
        self.terminal = io.StringIO()
        self.early: list[Warning] = []

    def call_historic(self, kwargs: dict[str, Any]) -> None:
        self.recorded.append(kwargs)

    def get_terminal_writer(self) -> io.StringIO:
        return self.terminal

    def issue_config_time_warning(self, warning: Warning, stacklevel: int) -> None:
        assert stacklevel > 1
        self.early.append(warning)

    def texts(self) -> list[str]:
        return [str(known["warning_message"].message) for known in self.recorded]


@pytest.fixture
def config() -> FakeConfig:
    return FakeConfig()


@pytest.fixture
def messages(config: FakeConfig) -> Messages:
    return Messages(config)  # type: ignore[arg-type]


class NeedsTwo(UserWarning):
    """A warning that cannot be made of its text alone."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def warned(category: str = "builtins:FutureWarning", message: str = "soon gone") -> Warned:
    return Warned(category, message, "/src/a.py", 7, "runtest", NODEID)


CWD, DTYPE = Change("cwd"), Change("dtype")


def changing(number: int, *changes: Change, **known: Any) -> RankOutcome:
    return replace(passing(number), done=replace(done(), changes=changes, **known))


def test_warning_is_recorded_as_pytest_would(config: FakeConfig, messages: Messages) -> None:
    messages.tell(0, warned())
    (known,) = config.recorded
    assert (known["when"], known["nodeid"], known["location"]) == ("runtest", NODEID, None)
    message = known["warning_message"]
    assert isinstance(message, warnings.WarningMessage)
    assert message.category is FutureWarning
    assert (str(message.message), message.filename, message.lineno) == (
        "soon gone",
        "/src/a.py",
        7,
    )


def test_same_warning_of_all_ranks_is_reported_once(config: FakeConfig, messages: Messages) -> None:
    for _ in range(4):
        messages.tell(0, warned())
    messages.tell(0, warned(message="other"))
    assert config.texts() == ["soon gone", "other"]


@pytest.mark.parametrize(
    "category", ["no_such_module:Gone", "builtins:Gone", "builtins:print", "builtins:ValueError"]
)
def test_unknown_category_is_a_user_warning(
    config: FakeConfig, messages: Messages, category: str
) -> None:
    messages.tell(0, warned(category))
    assert config.recorded[0]["warning_message"].category is UserWarning


def test_category_with_a_signature_of_its_own(config: FakeConfig, messages: Messages) -> None:
    messages.tell(0, warned(f"{__name__}:{NeedsTwo.__qualname__}"))
    assert config.recorded[0]["warning_message"].category is UserWarning
    assert config.texts() == ["NeedsTwo: soon gone"]


def test_late_problems_are_kept_once_and_name_their_ranks(
    config: FakeConfig, messages: Messages
) -> None:
    for rank, problem in enumerate((None, "Traceback 1", "Traceback 1", "Traceback 2")):
        messages.tell(rank, Finished(problem))
    assert messages.problems == ["ranks 1-2\n\nTraceback 1", "rank 3\n\nTraceback 2"]
    assert config.recorded == []


def test_warning_of_no_test(config: FakeConfig, messages: Messages) -> None:
    messages.warn("ranks are spawned")
    (warning,) = config.early
    assert isinstance(warning, DdpWarning)
    assert str(warning) == "ranks are spawned"


def test_good_test_leaves_no_remark(config: FakeConfig, messages: Messages) -> None:
    messages.after_test(run(passing(0), passing(1)), [])
    assert config.recorded == []
    assert config.terminal.getvalue() == ""


def test_change_names_its_ranks_unless_it_was_all(config: FakeConfig, messages: Messages) -> None:
    outcome = run(changing(0, CWD), changing(1, CWD, DTYPE), changing(2, CWD, DTYPE))
    messages.after_test(outcome, [])
    assert config.texts() == [
        f"{NODEID}: changed cwd; restored",
        f"{NODEID}: changed dtype on ranks 1, 2; restored",
    ]
    message = config.recorded[0]["warning_message"]
    assert message.category is DdpWarning
    assert (message.filename, message.lineno) == ("tests/test_made.py", 10)


def test_what_was_left_replaces_the_rank(config: FakeConfig, messages: Messages) -> None:
    outcome = run(passing(0), changing(1, rank_doubt=(Leak("an RPC agent"),)))
    messages.after_test(outcome, [])
    assert config.texts() == [f"{NODEID}: left an RPC agent behind on rank 1; the rank is replaced"]


def test_what_was_left_is_reported_once_for_each_kind(
    config: FakeConfig, messages: Messages
) -> None:
    children = tuple(Leak("child process", f"sleep {number}") for number in range(5))
    thread, group = Leak("thread", "'a'"), Leak("process group", "'1'")
    outcome = run(
        changing(0, rank_doubt=(*children, thread)),
        changing(1, rank_doubt=(*children[:2], thread)),
        changing(2, rank_doubt=(group, group, *children[:2])),
    )
    messages.after_test(outcome, [])
    assert config.texts() == [
        f"{NODEID}: left 5 child processes (sleep 0; sleep 1; sleep 2; 2 more) behind on rank 0, "
        "2 (sleep 0; sleep 1) on ranks 1, 2; the ranks are replaced",
        f"{NODEID}: left a thread ('a') behind on ranks 0, 1; the ranks are replaced",
        f"{NODEID}: left 2 process groups ('1') behind on rank 2; the rank is replaced",
    ]


def test_what_was_left_is_counted_as_it_is_named(config: FakeConfig, messages: Messages) -> None:
    def groups(*names: str) -> tuple[Leak, ...]:
        return tuple(Leak("process group", repr(name)) for name in names)

    named = (
        groups("1", "4"),
        groups("1", "4"),
        groups("2", "4"),
        groups("3"),
        (),
        groups("5"),
        groups("6"),
    )
    messages.after_test(run(*(changing(r, rank_doubt=n) for r, n in enumerate(named))), [])
    assert config.texts() == [
        f"{NODEID}: left 2 process groups ('1'; '4') behind on ranks 0, 1, 2 ('2'; '4') on rank 2, "
        "1 ('3') on rank 3, 1 ('5') on rank 5, others on rank 6; the ranks are replaced"
    ]


def test_threads_of_other_names_are_alike_but_for_an_address(
    config: FakeConfig, messages: Messages
) -> None:
    doubts = [(Leak("thread", f"'at 0x{rank}'"),) for rank in range(2)]
    messages.after_test(run(*(changing(r, rank_doubt=d) for r, d in enumerate(doubts))), [])
    assert config.texts() == [f"{NODEID}: left a thread ('at 0x0') behind; the ranks are replaced"]


def test_change_is_reported_once_however_it_differs(config: FakeConfig, messages: Messages) -> None:
    outcome = run(*(changing(rank, Change("the directory", f"/a -> /{rank}")) for rank in range(2)))
    messages.after_test(outcome, [])
    assert config.texts() == [f"{NODEID}: changed the directory (/a -> /0; /a -> /1); restored"]


def test_messages_that_differ_in_an_address_are_one(config: FakeConfig, messages: Messages) -> None:
    for rank in range(3):
        messages.tell(rank, warned(message=f"<Model object at 0x7f{rank}> is odd"))
        messages.tell(rank, Finished(f"Traceback of 0x7f{rank}"))
    assert config.texts() == ["<Model object at 0x7f0> is odd"]
    assert messages.problems == ["ranks 0-2\n\nTraceback of 0x7f0"]


def test_messages_that_are_left_are_reported_by_direction(
    config: FakeConfig, messages: Messages
) -> None:
    way = MessageRoute("0", (0, 1), 0, 1, 0)
    left = (
        UnmatchedMessages(way, 1, code_line("/a/test_a.py:9")),
        UnmatchedMessages(way._replace(tag=3, group="1"), 2, code_line("/a/test_a.py:10")),
        UnmatchedMessages(way._replace(sender=-1), -1, code_line("/a/test_a.py:11")),
        UnmatchedMessages(way, -1, None),
    )
    outcome = run(passing(0), passing(1), unfinished=left)
    messages.after_test(outcome, [])
    then = "; the process group is built anew"
    assert [text.removeprefix(f"{NODEID}: ") for text in config.texts()] == [
        "left 3 sends without a receive behind (rank 0 to rank 1, /a/test_a.py:9; "
        f"rank 0 to rank 1, tag 3, group '1', /a/test_a.py:10){then}",
        f"left a receive without a send behind (rank 1 from any rank, /a/test_a.py:11){then}",
        "a fixture that has ended left a receive without a send behind (rank 1 from rank 0)" + then,
    ]


def test_messages_that_are_left_on_a_group_that_is_kept(
    config: FakeConfig, messages: Messages
) -> None:
    left = (UnmatchedMessages(MessageRoute("0", (0, 1), 0, 1, 0), 1, None),)
    messages.after_test(run(passing(0), passing(1), unfinished=left, keeps_group=True), [])
    (text,) = config.texts()
    assert text.endswith("; the group is kept, and the next test may meet them")


def test_suspicions_are_warnings(config: FakeConfig, messages: Messages) -> None:
    messages.after_test(run(passing(0), suspicions=("may be swapped",)), [])
    assert config.texts() == [f"{NODEID}: may be swapped"]


def test_setup_show_of_the_first_rank_is_printed(config: FakeConfig, messages: Messages) -> None:
    shown = [changing(rank, setup_show=f"SETUP of {rank}\n") for rank in range(2)]
    messages.after_test(run(*shown), [])
    assert config.terminal.getvalue() == "SETUP of 0\n"
