"""The kinds of failures: a stable code for each, with its likely causes and what to do.

Failure texts end with the code, ``python -m pytest_ddp`` prints its entry, and
``docs/troubleshooting.md`` is made from this table. A code keeps its meaning; that of a kind which
no longer exists is not used again. An extension has its own in ``ENTRIES`` of its ``codes.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddp import extending
from pytest_ddp.outcome.outcome import HangKind


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of failure."""

    code: str
    title: str
    texts: tuple[str, ...]
    """How texts of such a failure begin, or what stands in them; ``...`` for what varies."""
    meaning: str
    causes: tuple[str, ...]
    """Likely causes, commonest first."""
    fixes: tuple[str, ...]
    message: str = ""
    """A regular expression that finds an exception of torch or Python by its first line; empty for
    others, which have their code as a fact."""


WAITS_FOR_ENDED = "DDP-001"
WAITS_FOR_EACH_OTHER = "DDP-002"
MISMATCH = "DDP-003"
TIMEOUT = "DDP-004"
NEW_GROUP = "DDP-005"
IMPORT = "DDP-006"
UNEQUAL_NUMBER = "DDP-010"
UNLIKE = "DDP-011"
DISAGREE = "DDP-012"
UNLIKE_MESSAGES = "DDP-013"
SIGNAL = "DDP-020"
KILLED = "DDP-021"
OUT_OF_MEMORY = "DDP-022"
EXITED = "DDP-023"
CHANNEL_LOST = "DDP-024"
GLOO_ABORTED = "DDP-025"
CHILD_DIED = "DDP-026"
PEER_LOST = "DDP-027"
NOT_BEGUN = "DDP-030"
NO_RANK = "DDP-031"
STOPPED = "DDP-032"

ENTRIES = (
    Entry(
        WAITS_FOR_ENDED,
        "A rank waits for a rank that has ended the test",
        (
            "deadlock: rank ... waits in ..., rank ... has ended the test without it",
            "deadlock: rank ... waits in recv ..., rank ... has ended the test and cannot send it",
            "deadlock: rank ... waits in send ..., rank ... has ended the test and cannot receive "
            "it",
        ),
        "Proved, not timed out: the rank that has ended can never take part in the collective, or "
        "be the other end of the message, in which the other one waits.",
        (
            "Ranks have unequal numbers of batches: one makes fewer backward passes, and the "
            "gradients of the other's next pass have no counterpart.",
            "A branch of the model runs on some ranks only: the others have no gradients for its "
            "parameters, and DDP does not reduce them there.",
            "One rank left a loop earlier (break, return, StopIteration, early stopping on its "
            "own loss).",
            "The collective is in a branch for some ranks, such as `if rank == 0:` around a "
            "barrier, a checkpoint or a metric.",
            "One rank raised or skipped, and its handler hides that.",
        ),
        (
            "Give each rank the same number of batches: DistributedSampler pads, drop_last=True "
            "cuts, torch's Join context goes on with unequal ones.",
            "find_unused_parameters=True of DDP, where ranks use unlike branches.",
            "Decide together: all_reduce or broadcast the flag that ends the loop.",
            "Call the collective on all ranks, and only use its result on one.",
        ),
    ),
    Entry(
        WAITS_FOR_EACH_OTHER,
        "Ranks wait for each other in a circle",
        ("deadlock: rank ... waits in ..., rank ... in ...",),
        "Proved: each of these ranks waits for one that is itself in the circle, so that none of "
        "them can move again.",
        (
            "Ranks use several groups in unlike orders.",
            "One rank is at a collective that the others come to later: unequal numbers of steps "
            "before it, or a branch around it.",
            "Each rank waits for a message before it sends its own, or sends its own before it "
            "receives one: gloo's send ends when it is received.",
            "A rank is at an operation of the ddp fixture (ddp.barrier, ddp.gather), another one "
            "in a collective.",
        ),
        (
            "Use groups in the same order on all their ranks.",
            "Compare the lines in the table: the rank that is further back has left something out, "
            "or the other one has made a step too many.",
            "Exchange messages with batch_isend_irecv, or let one side send first.",
        ),
    ),
    Entry(
        MISMATCH,
        "Ranks are in collectives that do not fit together",
        ("mismatch: rank ... waits in ..., rank ... in ...", "mismatch: ... is done with ..."),
        "Proved: the ranks are at the same place in a group's sequence of collectives, but in "
        "another operation, or with another source or destination, size or dtype.",
        (
            "A tensor's size follows from the rank's own data: a last batch that is smaller, an "
            "uneven shard, the detections of one image.",
            "A metric, a log or a barrier is called on one rank alone, and meets the next "
            "collective of the others, such as a gradient.",
            "Ranks take different branches: another loss, another set of parameters.",
        ),
        (
            "Gather the sizes first, pad to the greatest and cut afterwards; or use "
            "all_gather_object, gather or all_to_all with sizes.",
            "Move the call out of the branch.",
        ),
    ),
    Entry(
        TIMEOUT,
        "The test's time is over",
        ("timed out after ... s: ...",),
        "Nothing was proved: some rank still worked, or waited in a way of which nothing can be "
        "proved. The text begins with the ranks that did not wait for others.",
        (
            "A rank computes, compiles, reads data or sleeps for longer than the test's timeout.",
            "A rank holds the GIL, or is suspended by a debugger.",
            "A lock, a queue or a process that the test waits for never answers.",
        ),
        (
            "Look at the stack of the first rank shown.",
            "Give a slow test more: `@pytest.mark.ddp(timeout=600)`, `--ddp-timeout`.",
            "`--ddp-trace=DIR` draws what each rank did and when.",
        ),
    ),
    Entry(
        NEW_GROUP,
        "A rank waits in new_group or init_process_group",
        ("timed out after ... s: ...", "... call: new_group  new_group #... (ranks ...)"),
        "When the time was over, a rank was in the making of a process group that others had not "
        "come to, or had made in another order.",
        (
            "new_group is called by the members alone: every rank has to call it, also those that "
            "are not in the group.",
            "Ranks make groups in unlike orders, or leave one out.",
            "init_process_group with another world size, address or port than the others.",
        ),
        (
            "Make all groups on all ranks, in the same order, before any is used.",
            "With ranks of a group only, pass use_local_synchronization=True.",
        ),
    ),
    Entry(
        IMPORT,
        "The import of a file has not ended",
        ("the import of ... has not ended after ... s on rank ...",),
        "Ranks import conftest and test files before the test's own time begins; one of these "
        "imports takes longer than 300 s, or never ends.",
        (
            "A module communicates, downloads or waits for a lock while it is imported.",
            "A file system or an interpreter that is slow for many processes at once.",
        ),
        (
            "Move that work into a fixture; the stack shows the line.",
            "A longer timeout of the test also lengthens this limit.",
        ),
    ),
    Entry(
        UNEQUAL_NUMBER,
        "Ranks issued unequal numbers of collectives",
        ("unequal number of collectives on ...: rank ... issued ..., rank ... issued ...",),
        "All ranks ended and no assert failed, but the next collective on this group would wait "
        "for ever, or pair with the wrong one.",
        (
            "An asynchronous collective, or one that does not wait for its peers (a broadcast's "
            "source), on some ranks alone.",
            "One rank left a loop earlier.",
        ),
        (
            "The text shows where the ranks part: call it on all ranks or on none.",
            "Where it is meant, set `ddp_check_collectives = off` in the ini file.",
        ),
    ),
    Entry(
        UNLIKE,
        "Ranks issued different collectives",
        (
            "the ranks differ in collective #... of ...:",
            "the ranks diverge at collective #... of ...:",
            "the ranks first diverge at collective #... of ...:",
        ),
        "All ranks ended, and the same place in a group's sequence has another operation, reduce "
        "operation, source, dtype or size on some of them: results are silently wrong.",
        (
            "SUM on one rank and MAX on another, or float32 against float16 of equal bytes.",
            "Two collectives in swapped order.",
            "What a rank sends in an all_to_all or a list form is not what its peer expects.",
        ),
        ("Compare the two calls that the text shows side by side, with their lines.",),
    ),
    Entry(
        UNLIKE_MESSAGES,
        "Both ends of a message differ in dtype",
        (
            "the ranks differ in message #... from rank ... to rank ... of ...:",
            "the ranks differ in a message to rank ... of ...:",
        ),
        "All ranks ended, and a rank has received a message into a tensor of another dtype than "
        "was sent. Only bytes are compared, so that its values are silently wrong.",
        (
            "A receiver makes its buffer with the default dtype, and the sender works with "
            "bfloat16.",
            "A tensor of indices or of a loss is sent where the receiver expects activations: the "
            "messages of two ranks pair up in the order of their calls.",
        ),
        ("Receive into a tensor of the dtype that is sent; for bytes, send a view of them, too.",),
    ),
    Entry(
        DISAGREE,
        "Some ranks skipped and others did not",
        ("ranks disagree: rank ... skipped (...), rank ... passed",),
        "A test has one verdict, and any of these ranks may be right.",
        (
            "pytest.skip on a condition that differs between ranks: a file, a device, a random "
            "number, an empty shard.",
        ),
        ("Skip on every rank or on none: decide by what all ranks know, or ddp.broadcast it.",),
    ),
    Entry(
        SIGNAL,
        "A signal ended a rank",
        ("rank ... died of SIG... in ...",),
        "The process of the rank crashed or was killed. Phase, line and native operator are those "
        "where it was hit.",
        (
            "SIGSEGV, SIGBUS: native code, an extension that was built for another torch, memory "
            "that was freed, /dev/shm that is full.",
            "SIGABRT: a failed check in C++; its text is in the captured stderr.",
            "SIGTERM: something outside of the test, such as a CI system that ends the job.",
        ),
        (
            "Look at the line marked with > and at the operator.",
            "Run the test alone and with ddp_backend=gloo, to separate the part from the backend.",
        ),
    ),
    Entry(
        KILLED,
        "SIGKILL ended a rank",
        ("rank ... died of SIGKILL in ...", "SIGKILL leaves no stack"),
        "The process was killed from outside. No record of the kernel's out-of-memory killer was "
        "found, which does not exclude it.",
        (
            "The out-of-memory killer of a container or a cgroup whose record cannot be read.",
            "The test itself, or a supervisor of the machine (SLURM, Kubernetes).",
        ),
        (
            "Look at `dmesg` and at the container's limits.",
            "Try fewer ranks or smaller batches: each rank has a process of its own.",
        ),
    ),
    Entry(
        OUT_OF_MEMORY,
        "Out of memory",
        (
            "the kernel's out-of-memory killer ...",
            "OutOfMemoryError: CUDA out of memory",
            "DefaultCPUAllocator: can't allocate memory",
        ),
        "The kernel killed a rank or one of its children, or an allocation failed.",
        (
            "All ranks together take more than the machine or the container has; several ranks on "
            "one GPU share its memory.",
            "A cache that grows from test to test: ranks stay for the next test.",
        ),
        (
            "Fewer ranks, smaller sizes, or `isolate=True` for the test that leaves much behind.",
            "For GPUs: `ranks_per_gpu`, and torch.cuda.empty_cache() in a fixture.",
        ),
    ),
    Entry(
        EXITED,
        "A rank exited before it reported",
        (
            "rank ... exited with code ... before reporting ...",
            "exit code 0 is no verdict: a report is missing",
        ),
        "The process ended by itself, with any code, 0 included.",
        (
            "os._exit, sys.exit in a thread of C++, or an atexit handler of a library.",
            "A check of a native library that ends the process.",
            "A script's `main` that ends with exit(): call its function instead.",
        ),
        ("Look at the stack of the exit, and at the captured output of that rank.",),
    ),
    Entry(
        CHANNEL_LOST,
        "A rank lost its connection to pytest",
        ("a rank that finds its connection to pytest closed leaves with this code",),
        "The socket between the rank and the pytest process was closed, and the rank ended.",
        (
            "The test closes descriptors that are not its own (os.closerange, a daemonising "
            "library).",
            "The pytest process, or the machine of the rank, has ended.",
        ),
        ("Close only what the test has opened.",),
    ),
    Entry(
        GLOO_ABORTED,
        "gloo aborted a rank that received something unexpected",
        (
            "gloo aborted it (EnforceNotMet, see stderr): the ranks gave one collective tensors of "
            "different shape or dtype, or called different collectives",
            "Received data size doesn't match expected size",
        ),
        "gloo ends the process of the rank that receives; the sender may be the one that is wrong.",
        (
            "all_gather or reduce_scatter of tensors with unequal sizes: gloo has no uneven form.",
            "A metric or a log on rank 0 alone meets a gradient of the others.",
            "A message that is longer than the tensor which receives it.",
        ),
        (
            "Gather the sizes first, and pad to the greatest.",
            "Compare the lines of all ranks in the table: are they at the same call?",
        ),
    ),
    Entry(
        CHILD_DIED,
        "A process that a rank started has died",
        (
            "a process that it forked died of SIG... in ...",
            "DataLoader worker (pid ...) is killed by signal: ...",
            "DataLoader worker (pid(s) ...) exited unexpectedly",
        ),
        "Most often a worker of a DataLoader.",
        (
            "/dev/shm is full: containers have 64 MiB by default.",
            "The worker's native code crashed, or the kernel ran out of memory.",
            "The worker was forked while a thread of the rank held a lock.",
        ),
        (
            "Run once with num_workers=0, to have the error in the rank itself.",
            "`docker run --shm-size=1g`, or torch.multiprocessing.set_sharing_strategy.",
        ),
        message=r"DataLoader worker \(pid",
    ),
    Entry(
        PEER_LOST,
        "A rank lost its connection to a peer",
        (
            "Connection closed by peer",
            "Connection reset by peer",
            "ncclRemoteError",
            "Timed out waiting ...ms for recv operation to complete",
            "wait timeout after ...ms, keys: ...",
        ),
        "The rank could not go on because another one was gone or did not come, and the plugin "
        "found no failure of that other rank.",
        (
            "The other rank destroyed its group, or ended its part, while this one connected.",
            "A timeout of the group, the store or the call that is shorter than the work.",
            "On several machines: a firewall, or an address that the others cannot reach.",
        ),
        (
            "End with a barrier where one rank may be slower.",
            "Lengthen the timeout, or look for what the others did meanwhile (`--ddp-trace=DIR`).",
        ),
    ),
    Entry(
        NOT_BEGUN,
        "A rank could not begin the test",
        ("rank ... could not begin: ...",),
        "Nothing of the test ran there: the file could not be imported, the test was not found, or "
        "the process group could not be built.",
        (
            "An import that fails in ranks only: it reads RANK, needs a GPU, or a path of the "
            "pytest process.",
            "Collection differs between ranks: parameters from a set, a random number, the time "
            "or the rank. Where each rank has an interpreter of its own, the text names parameters "
            "whose order differs.",
            "The port or the network interface of the rendezvous is taken or blocked.",
        ),
        (
            "The text has the traceback of the rank.",
            "Make parameters the same in each process: sort sets, fix seeds.",
            "Set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to an interface that works.",
        ),
    ),
    Entry(
        NO_RANK,
        "No rank can be started",
        (
            "no rank can be started: ...",
            "the host process of the ranks exited with code ...",
            "the host process of the ranks died of SIG...",
        ),
        "The process that imports what ranks share, or a rank at its start, has ended.",
        (
            "An import of a plugin or a library that ends the process, or needs what is missing.",
            "A limit of the machine: processes, open files, memory.",
        ),
        (
            "The text has what that process printed.",
            "`ulimit -u`, `ulimit -n`, and the container's limits.",
            "`python -m pytest_ddp` lists a command that examines the machine.",
        ),
    ),
    Entry(
        STOPPED,
        "Ranks were stopped, as another phase had failed on other ranks",
        ("rank ... was stopped in ...",),
        "A consequence: another rank failed in a later phase of the test, and this one had not "
        "come to it when the time after a failure was over. Errors that follow a failure of an "
        "earlier phase have no code: they say 'after the failure in call'.",
        ("The other failure of the same test.",),
        ("Read the failure of the later phase; this one goes with it.",),
    ),
    Entry(
        "DDP-040",
        "NCCL or its GPUs are missing",
        (
            "Distributed package doesn't have NCCL built in",
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "Duplicate GPU detected",
            "NCCL needs a GPU for each rank: ... needed, ... found usable by torch",
        ),
        "The backend needs a build of torch with NCCL and a GPU of its own for each rank. A test "
        "that asks for it by its mark is skipped where GPUs are missing.",
        (
            "A CPU build of torch, or a hidden GPU (CUDA_VISIBLE_DEVICES).",
            "new_group(backend='nccl') or a library's default in a test that runs on gloo.",
            "Two ranks on one GPU, which NCCL refuses.",
        ),
        (
            "`--ddp-backend=gloo`, or a mark with backend='gloo'; ranks_per_gpu lets several ranks "
            "share a GPU, with NCCL too.",
            "Take the backend from ddp.backend, and the device from ddp.device.",
        ),
        message=r"doesn't have NCCL built in|only supported with GPUs|Duplicate GPU detected",
    ),
    Entry(
        "DDP-041",
        "DDP has not reduced all gradients",
        ("Expected to have finished reduction in the prior iteration before starting a new one",),
        "Parameters had no gradient in the pass before, and DDP still waits for them.",
        (
            "A branch of the model that this pass did not use, on all ranks or on one.",
            "A forward without its backward, such as an evaluation through the wrapped module.",
        ),
        (
            "find_unused_parameters=True, or freeze what is not trained.",
            "Evaluate with model.module, under torch.no_grad().",
        ),
        message=r"Expected to have finished reduction in the prior iteration",
    ),
    Entry(
        "DDP-042",
        "The process group is missing, or there already",
        (
            "Default process group has not been initialized",
            "trying to initialize the default process group twice!",
        ),
        "With a ddp mark the group is there before the test's fixtures, unless it has init=False.",
        (
            "Code of the test or of a library calls init_process_group by itself.",
            "A test with init=False, or one that has destroyed the group, uses it.",
        ),
        (
            "Mark the test with init=False, or let the code ask dist.is_initialized() first.",
            "Do not destroy the group in a test that has not made it.",
        ),
        message=r"Default process group has not been initialized"
        r"|initialize the default process group twice",
    ),
    Entry(
        "DDP-043",
        "CUDA was in use before ranks were forked",
        ("Cannot re-initialize CUDA in forked subprocess",),
        "A process that has used CUDA cannot be forked.",
        ("An import, a plugin or the test itself touches the GPU and then forks.",),
        (
            "`--ddp-start-method=spawn`, or move that work into a fixture.",
            "In the test: a DataLoader with multiprocessing_context='spawn'.",
        ),
        message=r"Cannot re-initialize CUDA in forked subprocess",
    ),
    Entry(
        "DDP-044",
        "An address is in use",
        ("EADDRINUSE", "address already in use"),
        "A port that the test or a library chose is taken, by another rank or another session.",
        (
            "A fixed MASTER_PORT or port=29500 in the test, on a machine that runs several.",
            "Each rank serves the port that one of them should serve.",
        ),
        ("Use the variables that ranks have already (MASTER_ADDR, MASTER_PORT), or port 0.",),
        message=r"EADDRINUSE|[Aa]ddress already in use",
    ),
    Entry(
        "DDP-050",
        "The ranks differ in a value",
        ("ddp.assert_same: the ranks differ at ...", "ddp.assert_close: the ranks differ at ..."),
        "A value that should be equal on all ranks is not; the text has each rank's value at the "
        "first difference.",
        (
            "Unlike seeds at the construction of a model: only DDP and FSDP broadcast it.",
            "Parameters, buffers or statistics that are updated without communication, such as "
            "BatchNorm's without SyncBatchNorm.",
            "Sums in another order: then differences are tiny.",
        ),
        (
            "Broadcast at the beginning, or `seed='same'` in the mark.",
            "assert_close for what is summed in another order.",
        ),
    ),
    Entry(
        "DDP-051",
        "An operation of the ddp fixture has no answer",
        ("DdpError: ddp.gather #...: rank ... has ended its test without it", "DdpError: ..."),
        "ddp.barrier, ddp.gather and ddp.broadcast need all ranks of the test, in the same order.",
        (
            "A branch around the call, or a rank that returned, skipped or failed earlier.",
            "Different operations on different ranks.",
        ),
        ("Call it on all ranks, outside of branches.",),
    ),
)


@functools.cache
def by_code() -> Mapping[str, Entry]:
    """All entries, those of extensions too, in the order of their codes."""
    others = (extending.load(name, "codes").ENTRIES for name in extending.names("codes"))
    entries = [*ENTRIES, *(entry for each in others for entry in each)]
    return {entry.code: entry for entry in sorted(entries, key=lambda entry: entry.code)}


def of_message(message: str) -> str:
    """The code of an exception of torch or Python by its first line; empty for all others."""
    found = (e.code for e in by_code().values() if e.message and re.search(e.message, message))
    return next(found, "")


OF_HANG = {
    HangKind.MISMATCH: MISMATCH,
    HangKind.FOR_ENDED: WAITS_FOR_ENDED,
    HangKind.FOR_EACH_OTHER: WAITS_FOR_EACH_OTHER,
}
"""The code of a hang that is proved."""


def pointer(code: str, docs_url: str) -> str:
    """The line of a failure text that names the place where the code is explained.

    Args:
        code: the code.
        docs_url: address of the documentation, with a slash at its end; empty if there is none.
    """
    return f"{code}: {explained_at(code, docs_url)}"


def explained_at(code: str, docs_url: str) -> str:
    """The address of a code's explanation, or the command that prints it; as :func:`pointer`."""
    if docs_url:
        return f"{docs_url}troubleshooting.html#{code.lower()}"
    return f"python -m pytest_ddp explain {code}"


def pointed_code(text: str) -> str:
    """The code that a failure text ends with; empty if it has none."""
    found = [
        code for code in re.findall(r"^(DDP-\d{3}): \S", text, re.MULTILINE) if code in by_code()
    ]
    return found[-1] if found else ""
