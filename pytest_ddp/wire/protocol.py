"""Every record that crosses a process boundary, and nothing else.

Three parties talk: the *controller* (the user's pytest process or one xdist
worker), the *host* that imports what ranks share and forks, and the *ranks*. A message is a
frozen dataclass with JSON-able fields; :mod:`pytest_ddp.wire.channel` frames it. Without
slots, which would make each class twice: this module is imported while a user waits.
It imports nothing of ours but its other parts, :mod:`pytest_ddp.wire.hosting`,
:mod:`pytest_ddp.wire.survey`, :mod:`pytest_ddp.wire.debugging` and
:mod:`pytest_ddp.wire.serving`, so that host and ranks stay free of controller code.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_ddp.wire.debugging import (
    EnterHang,
    LeaveTerminal,
    LiftTimeouts,
    TakeTerminal,
    WantTerminal,
)
from pytest_ddp.wire.hosting import (
    Collected,
    HostReady,
    Json,
    KillRank,
    RankExited,
    RankStarted,
    Session,
    StartRank,
)
from pytest_ddp.wire.serving import Inherit, Joined, Place, Serve, Served, ServiceReady
from pytest_ddp.wire.survey import Calls, GroupCount, Probe, Standing, TellCalls, Traffic

ERRORS = "ddp_errors"
"""Attribute of a report of an exception group: what each exception in it says."""

EXIT_LINK_LOST = 78
"""Exit code of a rank whose channel was closed under it, by ``os.closerange`` for example."""


class Phase(enum.StrEnum):
    """The phase of a test, in pytest's words (``TestReport.when``)."""

    SETUP = "setup"
    CALL = "call"
    TEARDOWN = "teardown"


class Operation(enum.StrEnum):
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


EXTENSION_KINDS: dict[str, type[ExtensionMessage]] = {}
"""All of these that are declared in this process, by name."""


# ---------------------------------------------------------------- controller -> rank


@dataclass(frozen=True)
class RunTest:
    """Run one item under pytest's own protocol.

    Nearly always all ranks are told the same, which is put in words once.
    """

    test: int
    """Number of the run; every answer carries it."""
    nodeid: str
    file: str
    """Absolute path of the file that the rank collects for it."""
    next_nodeid: str | None
    """The next item of the pool, so that pytest knows which fixtures to keep."""
    next_file: str | None
    next_is_known: bool
    """False under xdist, where the future is unknown: then wide fixtures stay up."""
    store: str | None
    """Name of the store of the default group; a new one means a new group. None in a world without
    a group."""
    new_store: bool
    """True if the ranks do not meet by this store yet."""
    by_file: bool
    """True if it is a new ``FileStore``, whose file travels along; on several machines ranks meet
    by a ``TCPStore`` at the port of the env:// rendezvous."""
    keys: int
    """Number of the test since which the group's store holds what is set there: this one, unless a
    fixture is up that was set up with the group before."""
    together: bool
    """Wait, when all is ready, until all ranks are: one of them may prove unable to begin."""
    environment: dict[str, str]
    """The torchrun variables of this rank that are other than it was told last."""
    env: dict[str, str]
    """What the mark adds to them, for the test alone."""
    driven: bool
    """The pytest process decides how often the test runs, and no plugin in the rank."""
    of_family: bool
    """The rank has to know what modules hold before it."""
    ends_family: bool
    """The rank has to say whether modules keep something else after it."""
    seeds: tuple[int, ...]
    """Seed of each rank's random number generators (python, NumPy, torch); the first is also that
    of what all ranks must draw alike, as Hypothesis's examples."""
    tmp_path: str
    """The directory that all ranks of the test share; the first that asks for it makes it."""
    own_tmp_path: bool
    """Each rank has one of its own below it instead."""
    serve_store: bool
    """True if the listening socket of the env:// rendezvous travels along, to the rank that serves
    it: a new one, unless nobody has met by that of the last test."""
    log_level: int | None
    """From which level on live logs or a log file want records; None if there is neither."""
    from_plugins: Json = field(default_factory=dict)
    """What plugins in the pytest process send to those in the rank, by name."""


@dataclass(frozen=True)
class ExchangeReply:
    """The answer to an :class:`Exchange`."""

    number: int
    payloads: tuple[str, ...]
    """Base64 of pickled objects by rank, never unpickled by the controller."""
    error: str | None
    """Why the exchange cannot complete, in a sentence; None if it did."""


@dataclass(frozen=True)
class Go:
    """Every rank is ready: begin."""

    test: int


@dataclass(frozen=True)
class Save:
    """Save the measured coverage: the rank will be killed."""

    test: int = -1


@dataclass(frozen=True)
class Finish:
    """Tear down what is still up, end the session and exit."""


# ---------------------------------------------------------------- rank -> controller


@dataclass(frozen=True)
class RankReady:
    """The rank waits for its first test. Descriptors of its capture files travel along."""

    serial: int
    pid: int
    captured: tuple[str, ...]
    """Names of the attached capture files, in order: "stdout", "stderr"."""


@dataclass(frozen=True)
class Began:
    """The group stands and the item was found: from here on it is the test's own doing.

    The rank waits for :class:`Go`, because a rank that died while another still builds the group
    would look like a failed rendezvous. Where the order does not say ``together`` nobody waits,
    and :mod:`pytest_ddp.wire.kept` is told alone.
    """

    test: int


@dataclass(frozen=True)
class NotBegun:
    """The test could not be started on this rank."""

    test: int
    problem: str
    """A sentence and, where there is one, a traceback."""
    worth_a_retry: bool
    """True if a rank made anew may do better: no group could be built, or tests before this one
    have left the rank in a state in which pytest cannot import a file."""


@dataclass(frozen=True)
class PhaseReported:
    """One of pytest's reports, as ``pytest_report_to_serializable`` gives it."""

    test: int
    report: Json


@dataclass(frozen=True)
class SubtestReported:
    """pytest's report of a subtest, beside that of its phase."""

    test: int
    message: str | None
    """That the subtest was given."""
    values: dict[str, str]
    """Its parameters, as pytest shows them."""
    report: Json | None
    """None if it passed without a word, as one of this test before it has."""
    start: float
    """Seconds since the epoch, as is the next."""
    stop: float
    duration: float


@dataclass(frozen=True)
class Passed:
    """A phase that passed without a word: no output, no property, nothing expected otherwise."""

    phase: Phase
    start: int
    """Nanoseconds since the epoch, as is the next: a float takes thrice as long to write."""
    stop: int
    duration: int
    """Nanoseconds."""


@dataclass(frozen=True)
class Warned:
    """A warning that pytest recorded in the rank."""

    category: str
    """Qualified name of the warning's class, ``module:qualname``."""
    message: str
    filename: str
    lineno: int
    when: str
    nodeid: str


@dataclass(frozen=True)
class XmlNoted:
    """Something for the file of ``--junitxml`` that no report carries."""

    nodeid: str | None
    """The test whose attribute it is; None for a property of the whole suite."""
    name: str
    value: str


@dataclass(frozen=True)
class EndAnnounced:
    """Until the next one the test is about the end of this process, and how it is to end."""

    test: int
    codes: tuple[int, ...]
    """Exit codes as of ``subprocess`` that the call may end with; none takes the word back."""
    others: bool = False
    """Whether it is any code but these."""

    def covers(self, code: int | None) -> bool:
        """Whether this end was announced."""
        return code is not None and (code in self.codes) is not self.others


@dataclass(frozen=True)
class Exchange:
    """A rank arrived at the ``number``-th side-channel operation of the test."""

    test: int
    number: int
    operation: Operation
    source: int | None
    """The source rank of a broadcast."""
    payload: str
    """Base64 of the pickled object; empty for a barrier or a receiver."""


@dataclass(frozen=True)
class Left:
    """One thing that a test left behind."""

    kind: str
    """``thread``, ``child process``, ``process group``; or, of what is there once, all of it in
    words, with an article."""
    which: str = ""
    """Its name, or what else tells it from others of its kind."""


@dataclass(frozen=True)
class Done:
    """The rank has run the item and cleaned up after it."""

    test: int
    passed: tuple[Passed, ...]
    """The phases of which no :class:`PhaseReported` told."""
    counts: tuple[GroupCount, ...]
    group_doubt: str | None
    """Why the default group must be rebuilt; None if it can be kept."""
    tied: bool
    """A fixture wider than the test used the group in its set-up, and is still up."""
    together: bool
    """So is one that asks for ``ddp``, and may want all ranks for its teardown."""
    rank_doubt: tuple[Left, ...]
    """What the test leaked that retires the rank (threads, processes, groups)."""
    met: bool
    """Code under test has met by the env:// rendezvous, or may have."""
    spent: bool
    """The test did what torch cannot undo in a process, which retires the rank as well."""
    modules_changed: bool
    """Modules keep something else than when the rank began, and the test was its family's last."""
    changes: tuple[str, ...]
    """What the test changed and the rank restored (environment, cwd, dtype, ...)."""
    setup_show: str
    """What ``--setup-show`` would print, empty without it."""
    exit_reason: str | None
    """Reason of a ``pytest.exit`` in the rank."""
    exit_code: int | None
    """Return code that the ``pytest.exit`` asked for."""
    from_plugins: Json = field(default_factory=dict)
    """What plugins send to those in the pytest process, by name."""
    traffic: Traffic | None = None
    """None if there were neither sends nor receives, as nearly always."""


@dataclass(frozen=True)
class Saved:
    """The answer to :class:`Save`."""

    test: int


@dataclass(frozen=True)
class Finished:
    """The rank's session has ended; it exits next."""

    problem: str | None
    """Traceback of a fixture teardown that failed now, when no report can carry it."""


Aside: TypeAlias = Warned | XmlNoted | Finished
"""What a rank says at any time, of no test's verdict."""
ToHost: TypeAlias = Session | Collected | StartRank | KillRank
FromHost: TypeAlias = HostReady | RankStarted | RankExited
ToRank: TypeAlias = (
    Session
    | RunTest
    | Go
    | ExchangeReply
    | Probe
    | TellCalls
    | TakeTerminal
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
    | Standing
    | Calls
    | WantTerminal
    | LeaveTerminal
    | Done
    | Saved
    | Finished
)
OfService: TypeAlias = Serve | ServiceReady | Served | Inherit | Joined | Place
"""What the pytest process, the service and the processes that it makes say to each other."""
Message: TypeAlias = ToHost | FromHost | ToRank | FromRank | OfService | ExtensionMessage
