"""Every record that crosses a process boundary, and nothing else.

Three kinds of processes exchange them: the *controller* (the user's pytest process or one xdist
worker), the *host*, which imports what ranks share and forks, and the *ranks*. A message is a
frozen dataclass with JSON-able fields, framed by :mod:`pytest_ddp.protocol.channel`. The
dataclasses have no slots, as these would make each class twice, and the user waits for this
module's import. Of the plugin it imports only its other parts,
:mod:`pytest_ddp.protocol.host_messages` and :mod:`pytest_ddp.protocol.rank_status`, so that host
and ranks do not import the controller's code.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pytest_ddp.protocol.host_messages import (
    Collected,
    HostReady,
    Json,
    KillRank,
    RankExited,
    RankStarted,
    Session,
    StartRank,
)
from pytest_ddp.protocol.rank_status import (
    Calls,
    GroupCount,
    Probe,
    RankStatus,
    RequestCalls,
    Traffic,
)

# ------------------------------------------------------------------
# Records about the terminal, which one rank at a time can have for a debugger.
#
# The docstring of this module lists their senders.


@dataclass(frozen=True)
class TerminalReply:
    """The answer to :class:`RequestTerminal`, with standard input, output and error if granted."""

    refusal: str | None
    """Why the terminal is refused, in a sentence; None if it is granted."""


@dataclass(frozen=True)
class LiftTimeouts:
    """A rank is in a debugger: lift the timeouts of all process groups."""


@dataclass(frozen=True)
class EnterHang:
    """Open a debugger at the place where the main thread is stuck."""

    test: int


@dataclass(frozen=True)
class RequestTerminal:
    """The rank is about to show a prompt, and waits for the terminal."""

    test: int


@dataclass(frozen=True)
class ReturnTerminal:
    """The rank goes on, and returns the terminal."""

    test: int
    steps: bool
    """Whether the rank is likely to prompt again at once."""
    quits: bool
    """The user wants the session to end."""


ERRORS = "ddp_errors"
"""Attribute of a report of an exception group: the texts of the exceptions in it."""

CODE = "ddp_code"
"""Attribute of an exception that the plugin or an extension raises, and of its report: the code of
this kind of failure."""
_E = TypeVar("_E", bound=BaseException)


def coded(error: _E, code: str) -> _E:
    """Return the error with the code of its kind of failure, which its report has too."""
    vars(error)[CODE] = code
    return error


EXPECTS_OTHER = "ddp_expects_other"
"""Attribute of the report of a test that was expected to fail and passed, and that expects another
exception than that of :func:`pytest.fail`."""

EXIT_LINK_LOST = 78
"""Exit code of a rank whose channel was closed by its test, by ``os.closerange`` for example."""


class Phase(enum.StrEnum):
    """The phase of a test, in pytest's words (``TestReport.when``)."""

    SETUP = "setup"
    CALL = "call"
    TEARDOWN = "teardown"


class FixtureOperation(enum.StrEnum):
    """An operation of the ``ddp`` fixture that goes through the controller."""

    BARRIER = "barrier"
    GATHER = "gather"
    BROADCAST = "broadcast"
    ASSERT_SAME = "assert_same"
    ASSERT_CLOSE = "assert_close"
    ASSERT_DIFFER = "assert_differ"


class ExtensionMessage:
    """Base of the messages of an extension, which are frozen dataclasses as well.

    A process can read those whose module it has imported.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        EXTENSION_KINDS[cls.__name__] = cls

    @property
    def descriptor_count(self) -> int:
        """How many file descriptors are attached to it; the receiver computes it, too."""
        return 0


EXTENSION_KINDS: dict[str, type[ExtensionMessage]] = {}
"""All of these that are declared in this process, by name."""


# ---------------------------------------------------------------- controller -> rank


@dataclass(frozen=True)
class RunTest:
    """Run one item under pytest's own protocol.

    Nearly always, all ranks get the same message, which is then serialized once.
    """

    test: int
    """Number of the run; every answer has it."""
    nodeid: str
    file: str
    """Absolute path of the item's file, which the rank collects."""
    next_nodeid: str | None
    """The pool's next item, so that pytest knows which fixtures to keep."""
    next_file: str | None
    next_is_known: bool
    """False under xdist, where the next item is unknown: then wide fixtures stay set up."""
    store: str | None
    """Name of the store of the default group; a new name means a new group. None in a world without
    a group."""
    new_store: bool
    """True if the ranks have not used this store yet."""
    by_file: bool
    """True for a new ``FileStore``, whose file is attached; on several machines ranks use a
    ``TCPStore`` at the port of the env:// rendezvous."""
    keys: int
    """Number of the test from which on keys in the group's store are kept: this one, or an earlier
    one if a fixture is still set up that was set up with the group."""
    waits_for_go: bool
    """When ready, wait until all ranks are ready: one of them may be unable to begin."""
    environment: dict[str, str]
    """The torchrun variables of this rank that have changed since the last message."""
    env: dict[str, str]
    """Environment variables that the mark sets, for this test only."""
    is_planned: bool
    """Whether this is one of several runs of an item: a report then has nothing of the others."""
    driven: bool
    """The pytest process decides how often the test runs, instead of a plugin in the rank."""
    shares_module_state: bool
    """The test names its ``module_state``: record the state of modules before it."""
    ends_module_state: bool
    """The next test names another one: report whether modules have other state after this test."""
    seeds: tuple[int, ...]
    """Seed of each rank's random number generators (python, NumPy, torch); the first also seeds
    what must be equal on all ranks, such as Hypothesis's examples."""
    tmp_path: str
    """The folder that all ranks of the test share; made by the first rank that needs it."""
    own_tmp_path: bool
    """Whether each rank has a folder of its own below ``tmp_path`` instead."""
    serve_store: bool
    """True if the listening socket of the env:// rendezvous is attached, for the rank that serves
    it: a new socket, unless the last test's was never used."""
    log_level: int | None
    """The lowest level that live logs or a log file need; None if there is neither."""
    from_plugins: Json = field(default_factory=dict)
    """Data of plugins in the pytest process for those in the rank, by name."""


@dataclass(frozen=True)
class ExchangeReply:
    """The answer to an :class:`Exchange`."""

    number: int
    payloads: tuple[str, ...]
    """Base64 of pickled objects, by rank; the controller never unpickles them."""
    error: str | None
    """Why the exchange cannot complete, in a sentence; None if it did."""


@dataclass(frozen=True)
class Go:
    """Every rank is ready: begin the test."""

    test: int
    refusals: dict[str, str] = field(default_factory=dict)
    """Why the ranks must not begin tests of this file, by node id."""


@dataclass(frozen=True)
class Save:
    """Save the coverage data: the rank will be killed."""

    test: int = -1


@dataclass(frozen=True)
class Finish:
    """Tear down fixtures that are still set up, end the session and exit."""


# ---------------------------------------------------------------- rank -> controller


@dataclass(frozen=True)
class RankReady:
    """A rank waits for its first test. Descriptors of its capture files are attached."""

    serial: int
    pid: int
    captured: tuple[str, ...]
    """Names of the attached capture files, in order: "stdout", "stderr"."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a test function, as one rank has collected it."""

    function: str
    """The tests' node id up to the bracket."""
    name: str
    values: dict[str, str]
    """A text of the value of each test, by node id."""


@dataclass(frozen=True)
class Began:
    """The group is built and the item was found: what follows is the test's own doing.

    The rank waits for :class:`Go`, since the death of a rank while another still builds the group
    would look like a failed rendezvous. Without :attr:`RunTest.waits_for_go` it does not wait
    and sends nothing, and only :mod:`pytest_ddp.protocol.buffered_reports` records the begin.
    """

    test: int
    parameters: tuple[Parameter, ...] = ()
    """The parameters of the test's file, if ranks may iterate over a set in different orders."""


@dataclass(frozen=True)
class NotBegun:
    """The test could not be started on this rank."""

    test: int
    problem: str
    """A sentence, with a traceback if there is one."""
    retryable: bool
    """True if a new rank may succeed: no group could be built, or earlier tests have left the rank
    in a state in which pytest cannot import a file."""


@dataclass(frozen=True)
class PhaseReported:
    """One of pytest's reports, from ``pytest_report_to_serializable``."""

    test: int
    report: Json


@dataclass(frozen=True)
class SubtestReported:
    """pytest's report of a subtest, in addition to that of its phase."""

    test: int
    message: str | None
    """The message that the subtest was given."""
    values: dict[str, str]
    """The subtest's parameters, as pytest shows them."""
    report: Json | None
    """The report; None if the subtest passed without any output, and this test has sent such a
    report before."""
    start: float
    """Seconds since the epoch, as ``stop``."""
    stop: float
    duration: float


@dataclass(frozen=True)
class Passed:
    """A phase that passed with nothing to report: no output, no property, no expected failure."""

    phase: Phase
    start: int
    """Nanoseconds since the epoch, as ``stop``: writing a float takes three times as long."""
    stop: int
    duration: int
    """Nanoseconds."""


@dataclass(frozen=True)
class Warned:
    """A warning that pytest recorded in the rank."""

    category: str
    """The warning's class, as ``module:qualname``."""
    message: str
    filename: str
    lineno: int
    when: str
    nodeid: str


@dataclass(frozen=True)
class XmlNoted:
    """An entry of ``--junitxml``'s file that is not part of a report."""

    nodeid: str | None
    """The test that has the attribute; None for a property of the whole suite."""
    name: str
    value: str


@dataclass(frozen=True)
class EndAnnounced:
    """How this process is going to end, by the test's own doing; valid until the next one."""

    test: int
    codes: tuple[int, ...]
    """Exit codes as in ``subprocess`` that the call may end with; empty to revoke the last one."""
    others: bool = False
    """True for any codes except these."""

    def covers(self, code: int | None) -> bool:
        """Whether this end was announced."""
        return code is not None and (code in self.codes) is not self.others


@dataclass(frozen=True)
class Exchange:
    """A rank has begun the test's exchange with this number, an operation of ``ddp``."""

    test: int
    number: int
    operation: FixtureOperation
    source: int | None
    """The source rank of a broadcast."""
    payload: str
    """Base64 of the pickled object; empty for a barrier or a receiver."""


@dataclass(frozen=True)
class Leak:
    """One thing that a test left behind."""

    kind: str
    """``thread``, ``child process``, ``process group``; or, for a thing that exists only once, a
    full description with an article."""
    which: str = ""
    """The name of what was left, or whatever else distinguishes it from others of its kind."""


@dataclass(frozen=True)
class Change:
    """One thing that a test changed and its rank restored."""

    kind: str
    """``torch's default dtype``, ``the environment``."""
    how: str = ""
    """``float32 -> float64``; empty if there is no more to it."""


@dataclass(frozen=True)
class Done:
    """The rank has run the item and cleaned up after it."""

    test: int
    passed: tuple[Passed, ...]
    """The phases for which no :class:`PhaseReported` was sent."""
    counts: tuple[GroupCount, ...]
    group_doubt: str | None
    """Why the default group must be rebuilt; None if it can be kept."""
    holds_group: bool
    """A fixture wider than the test is set up that used the group in its set-up."""
    needs_peers: bool
    """A wide fixture is set up that uses ``ddp``, and whose teardown may need all ranks."""
    rank_doubt: tuple[Leak, ...]
    """Leaks of the test because of which the rank is replaced (threads, processes, groups)."""
    used_rendezvous: bool
    """Code under test has used the env:// rendezvous, or may have."""
    irreversible: bool
    """The test did what torch cannot undo in a process, so the rank is replaced as well."""
    modules_changed: bool
    """The next test has another ``module_state``, and these tests have changed that of modules."""
    changes: tuple[Change, ...]
    """What the test changed and the rank restored (environment, cwd, dtype, ...)."""
    setup_show: str
    """The output of ``--setup-show``; empty without it."""
    exit_reason: str | None
    """Reason of a ``pytest.exit`` in the rank."""
    exit_code: int | None
    """Return code of the ``pytest.exit``."""
    from_plugins: Json = field(default_factory=dict)
    """Data of plugins in the rank for those in the pytest process, by name."""
    traffic: Traffic | None = None
    """The test's sends and receives; None if there were none, which is nearly always so."""


@dataclass(frozen=True)
class Saved:
    """The answer to :class:`Save`."""

    test: int


@dataclass(frozen=True)
class Finished:
    """The rank's session has ended; it exits next."""

    problem: str | None
    """Tracebacks of errors in this last teardown, which no report can have."""


Aside: TypeAlias = Warned | XmlNoted | Finished
"""Messages that a rank may send at any time, and that do not affect a test's verdict."""
ToHost: TypeAlias = Session | Collected | StartRank | KillRank
FromHost: TypeAlias = HostReady | RankStarted | RankExited
ToRank: TypeAlias = (
    Session
    | RunTest
    | Go
    | ExchangeReply
    | Probe
    | RequestCalls
    | TerminalReply
    | LiftTimeouts
    | EnterHang
    | Save
    | Finish
)
FromRank: TypeAlias = (
    RankReady
    | Began
    | NotBegun
    | PhaseReported
    | SubtestReported
    | Warned
    | XmlNoted
    | EndAnnounced
    | Exchange
    | RankStatus
    | Calls
    | RequestTerminal
    | ReturnTerminal
    | Done
    | Saved
    | Finished
)
Message: TypeAlias = ToHost | FromHost | ToRank | FromRank | ExtensionMessage
