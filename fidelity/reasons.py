"""What is known to differ on ranks, and why; what nobody can say a reason for is not to be here."""

from __future__ import annotations

from fidelity.comparing import Reason

REASONS = (
    Reason(
        "click",
        r"tests/test_utils\.py::test_echo_via_pager\[.*\]",
        "writes to one file of a fixed name in /tmp, for which the ranks race",
    ),
)
