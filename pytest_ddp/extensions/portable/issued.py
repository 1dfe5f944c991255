"""What a rank issues: a record of each operation, and the log by which all ranks are compared.

The log is made in a rank and read in the pytest process. Imports no torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_ddp.rank.operations.table import Form
from pytest_ddp.system.stdlib import threading

if TYPE_CHECKING:
    from pytest_ddp.extensions.comms.stack import Origin

_KEPT = 100_000
"""Issues and waits of a rank that are kept at most."""


class Group(NamedTuple):
    """A process group of this rank."""

    name: str
    """torch's name of the group."""
    made: int
    """Which group of this name it is: names are used again after the default group is destroyed.
    0 for one that the test has found."""
    label: str
    """The group's name in texts: a mesh dimension, its description, or its members."""
    members: tuple[int, ...]
    """Global ranks, by rank in the group."""
    own: int
    """This rank's global rank."""
    is_known: bool
    """Whether it was made under watch, or is the default group: nothing is said of others."""
    explicit: str | None
    """The backend that it was made with, if the maker named one."""

    @property
    def key(self) -> str:
        """The same on all its members, and no other group's."""
        return f"{self.name}#{self.made}"


@dataclass(slots=True, eq=False)
class IssuedOperation:
    """An operation of the stream, as far as NCCL is concerned. It holds no tensor and no handle."""

    form: Form
    group: Group
    backend: str
    """The backend that sends it in production: ``nccl``, ``gloo``; empty if unknown."""
    thread: int
    origin: Origin
    """What the stack says of it."""
    root: int | None = None
    """Source or destination of a collective, as rank in the group."""
    peer: int | None = None
    """The other end of a message, as rank in the group; -1 for a receive from any."""
    tag: int = 0
    is_users: bool = False
    """Whether torch has returned its handle to the user's code, which has to wait for it, and not
    to a part of torch or a package."""
    place_in_log: int | None = None

    @property
    def is_judged(self) -> bool:
        """Whether NCCL sends it in production."""
        return self.backend == "nccl"

    @property
    def is_root(self) -> bool:
        """Whether this rank is the source or destination of a collective."""
        return self.root is not None and self.group.members[self.root] == self.group.own

    @property
    def name(self) -> str:
        """The operation in texts: ``all_reduce on dp``, ``send to rank 1 on world``."""
        ends = ""
        if self.peer is not None:
            way = "to" if self.form.operation == "send" else "from"
            end = "any rank" if self.peer < 0 else f"rank {self.group.members[self.peer]}"
            ends = f" {way} {end}"
        return f"{self.origin.objects or self.form.name}{ends} on {self.group.label}"

    @property
    def site(self) -> str:
        """``file:line`` of the user's code; empty where there is none."""
        return "" if self.origin.site is None else str(self.origin.site)


class OperationLog:
    """The operations of a rank that NCCL would send, and the waits for them.

    Args:
        default_group_was_used: whether a fixture that is wider than the test may have used it.
    """

    def __init__(self, *, default_group_was_used: bool) -> None:
        self._default_group_was_used = default_group_was_used
        self._rows: dict[tuple[Any, ...], int] = {}
        """Numbers of rows: what is the same in each turn of a loop is one."""
        self._threads: dict[int, int] = {}
        self._log: list[tuple[int, int, int]] = []
        self._used: set[str] = set()
        self._is_whole = True
        self._lock = threading.Lock()

    def issued(self, operation: IssuedOperation, nbytes: int) -> None:
        """Note an operation, and the bytes of a message."""
        if not operation.is_judged or operation.form.operation == "monitored_barrier":  # gloo's
            return
        group, peer, batch = operation.group, operation.peer, operation.origin.batch
        ends, tag = group.members, None
        if peer is not None:
            other, tag = group.members[peer] if peer >= 0 else _ANY, operation.tag
            ends = (group.own, other) if operation.form.operation == "send" else (other, group.own)
        key = group.key, ends, tag
        row = *key, group.label, group.members, batch > 0, operation.name, operation.site, nbytes
        with self._lock:
            if self._default_group_was_used and not group.made:
                self._used.add(group.key)
            if self._has_room():
                operation.place_in_log = len(self._log)
                number = self._rows.setdefault(row, len(self._rows))
                self._log.append((number, self._thread(operation.thread), batch < 2))

    def waited(self, operation: IssuedOperation) -> None:
        """Note that this thread has waited for an operation."""
        with self._lock:
            if operation.place_in_log is not None and self._has_room():
                thread = self._thread(threading.get_ident())
                self._log.append((_WAIT, thread, operation.place_in_log))

    def to_json(self) -> dict[str, Any]:
        """What :func:`read` reads."""
        rows, used = [*self._rows], [*self._used]
        return {"rows": rows, "log": self._log, "used": used, "is_whole": self._is_whole}

    def _has_room(self) -> bool:
        self._is_whole &= len(self._log) < _KEPT
        return self._is_whole

    def _thread(self, ident: int) -> int:
        return self._threads.setdefault(ident, len(self._threads))


_WAIT = _ANY = -1


# ------------------------------------------------------------------ in the pytest process


class MatchKey(NamedTuple):
    """What operations are matched by between ranks: the n-th with a key is the same one on all."""

    group: str
    ends: tuple[int, ...]
    """Global ranks: all members for a collective, the sender and the receiver of a message."""
    tag: int | None
    """The tag of a message; None for a collective."""

    @property
    def is_message(self) -> bool:
        return self.tag is not None


class Issue(NamedTuple):
    """An operation that a rank has issued."""

    rank: int
    key: MatchKey
    number: int
    """The number among those with its key, from 1."""
    label: str
    """The label of its group."""
    members: tuple[int, ...]
    """Global ranks of its group."""
    is_batched: bool
    """Whether ``batch_isend_irecv`` issued it."""
    name: str
    """The operation in texts: ``all_reduce on dp``."""
    site: str
    """``file:line``."""
    nbytes: int
    """The bytes of a message, or of the room for it."""
    thread: int
    place: int
    """The number among those of its thread, from 1; what is issued in one batch has the same, since
    NCCL launches it together."""
    knows: Mapping[int, int]
    """The last place of each other thread that was issued before for certain."""

    @property
    def is_send(self) -> bool:
        return self.key.ends[0] == self.rank

    @property
    def peer(self) -> int:
        """Global rank of the other end of a message; -1 for a receive from any."""
        return self.key.ends[1 if self.is_send else 0]

    @property
    def is_matched(self) -> bool:
        """False for a receive from any rank: which message it takes is not known."""
        return _ANY not in self.key.ends

    def comes_after(self, other: Issue) -> bool:
        """Whether it was issued after another one of the same rank, for certain."""
        return self.before(other.thread) >= other.place

    def before(self, thread: int) -> int:
        """The last place of a thread that was issued before for certain."""
        return self.place - 1 if thread == self.thread else self.knows.get(thread, 0)


class Step(NamedTuple):
    """What a thread does: issue an operation, or wait for it."""

    thread: int
    issue: Issue
    is_wait: bool


class History(NamedTuple):
    """What a rank has issued and waited for."""

    steps: list[Step]
    used: frozenset[str]
    """Groups that may have been used before the test."""
    is_whole: bool
    """Whether it is there to the end of the test."""

    @property
    def issues(self) -> Iterator[Issue]:
        return (step.issue for step in self.steps if not step.is_wait)


def read(rank: int, sent: Mapping[str, Any]) -> History:
    """Read what a rank has sent."""
    numbers: Counter[MatchKey] = Counter()
    places: Counter[int] = Counter()
    knows: defaultdict[int, dict[int, int]] = defaultdict(dict)
    steps: list[Step] = []
    for row, thread, value in sent["log"]:
        if row == _WAIT:
            issue = steps[value].issue
            if issue.thread != thread:
                known = knows[thread]
                latest = max(issue.place, known.get(issue.thread, 0))
                knows[thread] = {**known, issue.thread: latest}
        else:
            group, ends, tag, label, members, is_batched, name, site, nbytes = sent["rows"][row]
            key = MatchKey(group, tuple(ends), tag)
            numbers[key] += 1
            places[thread] += value
            issue = Issue(
                rank=rank,
                key=key,
                number=numbers[key],
                label=label,
                members=tuple(members),
                is_batched=is_batched,
                name=name,
                site=site,
                nbytes=nbytes,
                thread=thread,
                place=places[thread],
                knows=knows[thread],
            )
        steps.append(Step(thread, issue, row == _WAIT))
    return History(steps, frozenset(sent["used"]), sent["is_whole"])
