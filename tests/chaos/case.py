"""A case: an inner test whose truth is known because of how it is made."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

Choice = TypeVar("Choice")

PASSED = frozenset({"passed"})
FAILED = frozenset({"failed"})
SKIPPED = frozenset({"skipped"})
XFAILED = frozenset({"xfailed"})
XPASSED = frozenset({"xpassed"})
ERROR = frozenset({"error"})
TEARDOWN_ERROR = frozenset({"passed+error"})
ANYTHING: frozenset[str] = frozenset()
"""What the documentation leaves open: only the next test is of interest."""

PHASES = {"setup": ERROR, "call": FAILED, "teardown": TEARDOWN_ERROR}
"""Phase: the verdict of a test that fails in it alone."""


@dataclass(frozen=True)
class Case:
    """An inner test, with a fixture of its own where it has something to do in one."""

    kind: str
    """What the test does, in the words of findings."""
    truth: frozenset[str]
    """The verdicts that follow from the documented rules; empty where they name none."""
    world_size: int
    body: str = "pass"
    setup: str = ""
    teardown: str = ""
    mark: dict[str, object] = field(default_factory=dict)
    """Further arguments of the ``ddp`` mark."""
    decorators: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    """Further fixtures."""
    spares_ranks: bool = True
    """False where ranks end without the teardown of their fixtures."""
    stops: bool = False
    """True where the session ends after the test."""

    @property
    def fails(self) -> bool:
        return is_failing(self.truth)

    @property
    def ends_group(self) -> bool:
        """Whether the test takes the default group away, which wide fixtures may need in
        teardown."""
        return "init" not in self.mark and "dist.destroy_process_group()" in self.body

    def fixture(self, name: str) -> str:
        """The source of the fixture ``own_{name}``; empty where the case needs none."""
        if not self.setup and not self.teardown:
            return ""
        body = _indented([self.setup, "yield", self.teardown])
        return f"@pytest.fixture\ndef own_{name}(ddp):\n{body}\n\n\n"

    def test(self, name: str, *, wide: Sequence[str] = (), method: bool = False) -> str:
        """The source of the test ``test_{name}``, which also uses the wide fixtures."""
        own = [f"own_{name}"] if self.setup or self.teardown else []
        names = [*(["self"] if method else []), "ddp", *own, *wide, *self.wants]
        marked = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        lines = [f"# {self.kind}", *(f"@{decorator}" for decorator in self.decorators)]
        lines += [f"@pytest.mark.ddp({marked})", f"def test_{name}({', '.join(names)}):"]
        return "\n".join([*lines, _indented([*(f"{use}()" for use in wide), self.body])])

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of the ``ddp`` mark."""
        return {"world_size": self.world_size, **self.mark}


def is_failing(verdicts: Iterable[str]) -> bool:
    """Whether some failure or error is in every one of the verdicts, and there is one."""
    return all("failed" in v.split("+") or "error" in v for v in verdicts) and bool(verdicts)


def with_teardown(verdicts: frozenset[str]) -> frozenset[str]:
    """Verdicts, and those where the fault spreads: it meets the teardown of a wider fixture.

    The last test of a pool owes that teardown; a rank that is stuck in it, because another one
    has failed before, delivers no report of it.
    """
    # An xfail mark covers the teardown too.
    ends = ("error", "xfailed")
    return verdicts | {f"{v}+{end}" for v in verdicts for end in ends if "+" not in v}


class Lines(TypedDict, total=False):
    """Arguments of a case: what it does in its phases."""

    setup: str
    body: str
    teardown: str


def in_phase(phase: str, lines: str) -> Lines:
    """Arguments of a case that runs the lines in a phase."""
    if phase == "setup":
        return {"setup": lines}
    return {"teardown": lines} if phase == "teardown" else {"body": lines}


def on(ranks: Iterable[int], line: str, otherwise: str = "pass") -> str:
    """The line on some ranks, another one on the others."""
    then, other = _indented([line]), _indented([otherwise])
    return f"if ddp.rank in {sorted(ranks)}:\n{then}\nelse:\n{other}"


class Draw:
    """Random choices, which follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"chaos {seed}")

    def one(self, choices: Iterable[Choice]) -> Choice:
        return self._random.choice(list(choices))

    def some(self, choices: Iterable[Choice], count: int) -> list[Choice]:
        """Different ones, in random order, at most ``count``."""
        found = list(choices)
        return self._random.sample(found, min(count, len(found)))

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def between(self, low: float, high: float) -> float:
        return round(self._random.uniform(low, high), 2)

    def size(self, low: int = 1) -> int:
        """A world size up to 4, mostly 2 or 3, since processes cost time."""
        return self.one(size for size in (1, 2, 2, 2, 3, 3, 4) if size >= low)

    def ranks(self, world_size: int) -> list[int]:
        """One rank, mostly, or all of them."""
        if self.chance(0.3):
            return list(range(world_size))
        return [self.one(range(world_size))]

    def phase(self) -> str:
        return self.one(["setup", "call", "call", "teardown"])


def _indented(blocks: Iterable[str]) -> str:
    return "\n".join(textwrap.indent(textwrap.dedent(b).strip(), "    ") for b in blocks if b)
