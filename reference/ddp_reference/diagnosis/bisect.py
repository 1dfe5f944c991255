"""Grow a model block by block until it fails, each time in a process of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from .launch import crash_report
from .report import CrashReport


@dataclass(frozen=True, slots=True)
class BlockReport:
    """The first block that fails, with how it failed; or none. Its text counts blocks from 1."""

    blocks: tuple[str, ...]
    """What was grown: the name and type of each block."""
    failing: int | None
    """Index of the first failing block in ``blocks``, from 0; None if all pass."""
    crash: CrashReport | None

    def __str__(self) -> str:
        if self.failing is None:
            return f"all {len(self.blocks)} blocks pass"
        name = self.blocks[self.failing]
        return f"block {self.failing + 1} of {len(self.blocks)} fails: {name}\n{self.crash}"


def first_failing_block(
    factory: str, *, ranks: int = 1, timeout: float = 120.0, cwd: Path | None = None
) -> BlockReport:
    """Find the first block of a model that fails, in construction, forward or backward.

    ``factory`` names ``module:function``; called without arguments it returns a list of
    functions that build one block each, and a tuple of inputs for the first. Models of the
    first k blocks are built, wrapped in DDP where there are several ranks, and run forward
    and backward; a model that fails with k blocks is taken to fail with more, so that about
    log2 of their number are tried. Raises ValueError where the factory itself fails.
    """
    blocks = _names(factory, timeout, cwd)
    passing, failing, crash = 0, len(blocks) + 1, None
    probe = len(blocks)  # a model that works is the usual answer
    while failing - passing > 1:
        report = _attempt(factory, probe, ranks, timeout, cwd)
        if report.cause is None:
            passing = probe
        else:
            failing, crash = probe, report
        probe = (passing + failing) // 2
    return BlockReport(blocks, None if crash is None else failing - 1, crash)


def _attempt(factory: str, count: int, ranks: int, timeout: float, cwd: Path | None) -> CrashReport:
    program = ("-m", "ddp_reference.diagnosis.attempt", factory, str(count))
    return crash_report(program, ranks=ranks, timeout=timeout, cwd=cwd)


def _names(factory: str, timeout: float, cwd: Path | None) -> tuple[str, ...]:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "names"
        program: Sequence[str] = ("-m", "ddp_reference.diagnosis.attempt", factory, str(path))
        report = crash_report(program, ranks=1, timeout=timeout, cwd=cwd)
        if report.cause is not None:
            raise ValueError(f"{factory} gives no blocks:\n{report}")
        return tuple(path.read_text().splitlines())
