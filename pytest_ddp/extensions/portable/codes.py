"""The codes of findings. Imports no torch."""

from __future__ import annotations

from pytest_ddp.extensions.portable.finding import OF_KIND, FindingKind
from pytest_ddp.verdict.codes import Entry

_OFF = (
    "If production does not use NCCL there, say so: `portable='off'`, or `cpu:gloo,cuda:nccl`.",
    "The page `portable.md` says what is judged and what is not.",
)

ENTRIES = (
    Entry(
        OF_KIND[FindingKind.GROUP_ORDER],
        "Ranks use groups in unlike orders",
        ("not portable to nccl: order between groups: ranks ... issue ... in opposite orders",),
        "Two ranks issue operations of two groups in opposite orders. gloo runs them beside each "
        "other; on NCCL each may keep the other one from running, and the ranks hang.",
        (
            "A branch by rank or by stage around operations of two groups.",
            "Asynchronous operations of a library and of the test's own code, in an order that "
            "follows from the rank's data.",
        ),
        ("Issue them in the same order on all ranks; where the waits are does not matter.", *_OFF),
    ),
    Entry(
        OF_KIND[FindingKind.LOST_HANDLE],
        "A handle was dropped before anything waited for it",
        ("not portable to nccl: lost handle: nothing waited for ...",),
        "The code received the handle of an asynchronous operation and lost it. On NCCL the "
        "computation then never waits for the result, and the memory may be used again too early.",
        (
            "`async_op=True`, isend or irecv whose result is not kept.",
            "A list of handles that is overwritten in a loop, or waited for on one branch only.",
        ),
        ("Keep the handle, and call wait() before the tensor is used again.", *_OFF),
    ),
    Entry(
        OF_KIND[FindingKind.TOUCHED_BUFFER],
        "A buffer was touched while an operation was in flight",
        ("not portable to nccl: a buffer touched in flight: ...",),
        "A tensor was read or written between the issue of its operation and the wait for it.",
        (
            "A gradient or a buffer is changed in place while it is reduced.",
            "The result is read before wait(): gloo has it by then, most often.",
        ),
        ("Wait first, or give the operation a copy.", *_OFF),
    ),
    Entry(
        OF_KIND[FindingKind.DIFFERENCE],
        "NCCL lacks what the test uses, or does it otherwise",
        ("not portable to nccl: a difference between gloo and NCCL: ...",),
        "The call, a pair of messages, or the use of a result is one of the known differences "
        "between gloo and NCCL. The text has what each of them does, and the source.",
        (
            "A dtype, a reduction or a layout that NCCL does not take.",
            "Messages that go together by their tags, in an order that only gloo allows, or with "
            "room for more than is sent.",
            "batch_isend_irecv on some ranks of a group that has had no collective yet.",
            "The tensor of reduce on a rank that is not its destination.",
        ),
        ("Do as the text says under Fix. All differences are on the page `nccl.md`.", *_OFF),
    ),
    Entry(
        OF_KIND[FindingKind.RELIANCE],
        "A rank relies on a collective that does not wait for all",
        ("not portable to nccl: a collective that does not wait: rank ... relies on ... to end",),
        "A rank went on from a collective that another one begins only after a message, or another "
        "collective, that the first one issues later. gloo lets it go on; on NCCL a collective may "
        "need all members before it ends on any, and the ranks hang.",
        (
            "A receiver of a broadcast or scatter, or a sender of a gather, sends something that "
            "another member waits for before its own call.",
            "Ranks that call a collective and a receive in unlike orders.",
        ),
        ("Call the collective first on all ranks, and the messages after it.", *_OFF),
    ),
)
