"""torch's own tests of ``torch.distributed``, adopted and explored: verdicts must not change."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fidelity.running import verdicts
from fidelity.suites import INSIDE, SUITES

TESTS = 60
"""Number of tests that are explored: the first by name of those that pass."""
RUNS = 5


class Adopted(NamedTuple):
    """What became of the tests of torch."""

    tests: int
    changed: tuple[str, ...]
    """Names of the tests that did not pass when they were explored."""

    def __str__(self) -> str:
        names = ", ".join(self.changed) or "none"
        return (
            f"Of {self.tests} tests of torch's `DistributedTest`, in {RUNS} runs each, "
            f"with another verdict: {names}."
        )


def adopted() -> Adopted:
    """Run them once, and explore those that pass.

    Raises:
        RuntimeError: pytest has not come to its end.
    """
    (suite,) = (one for one in SUITES if one.adopted)
    plain = verdicts(suite, on_ranks=True)
    passed = sorted(name for name, verdict in plain.items() if verdict == "passed")[:TESTS]
    chosen = (f"--ddp-explore={RUNS}", *(str(INSIDE / name) for name in passed))
    explored = verdicts(replace(suite, arguments=chosen), on_ranks=True)
    changed = (name for name in passed if explored.get(name) != "passed")
    return Adopted(len(passed), tuple(name.rpartition("::")[2] for name in changed))
