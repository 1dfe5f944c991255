"""No check fails for a benign twin.

Apart from the mutants, so that two processes of pytest-xdist can share the work.
"""

from __future__ import annotations

import pytest
from ddp_conformance.mutants import Twin, all_twins

from conformance.kill_matrix import applicable
from conformance.sizes import at_its_sizes


@pytest.mark.parametrize("twin", [p for twin in all_twins() for p in at_its_sizes(twin)])
def test_twin_lives(twin: Twin) -> None:
    checks = applicable(twin.subject)
    assert checks, "a twin that no check looks at proves nothing"
    for check in checks:
        check(twin.subject)
