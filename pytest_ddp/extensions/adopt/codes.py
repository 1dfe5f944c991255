"""The code of failures of processes that tests start themselves."""

from __future__ import annotations

from pytest_ddp.verdict.codes import Entry

ENDED_BADLY = "DDP-066"

ENTRIES = (
    Entry(
        ENDED_BADLY,
        "A process that the test started has ended badly",
        (
            "... (rank ..., pid ...) died of SIG... in ..., at ...",
            "... (rank ..., pid ...) exited with code ..., at ...",
            "process ... exited with code 0 before its target had returned",
        ),
        "`--ddp-adopt=spawn` looks at how the processes of a test end. One did not return from its "
        "target, and the test did not ask for its exit code.",
        (
            "A crash, or an exit in native code or a handler: the text has phase, line and stack.",
            "os._exit(0) in the process, which multiprocessing takes for a success.",
            "A process that the test stops in a way that is not seen.",
        ),
        (
            "Look at the line and the stack of the process.",
            "A test that means it reads the process's exitcode, and decides on it alone.",
            "`ddp_adopt_exits = plain` in the ini file leaves the exits to multiprocessing.",
        ),
    ),
)
