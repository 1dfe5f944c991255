"""Cases that fail by an exception, and those that are skipped or expected to fail."""

from __future__ import annotations

from tests.acceptance.ends import deaths
from tests.chaos.case import (
    ANYTHING,
    ERROR,
    FAILED,
    PASSED,
    PHASES,
    SKIPPED,
    XFAILED,
    XPASSED,
    Case,
    Draw,
    in_phase,
    on,
)

LEAVE_BY_BASE_EXCEPTION = {
    **{death.name: death.line for death in deaths.BASE_EXCEPTIONS},
    "GeneratorExit": "raise GeneratorExit",
    "BaseException": "raise Odd",
}
EXCEPTIONS = {
    **{death.name: death.line for death in deaths.EXCEPTIONS},
    "MemoryError": "raise MemoryError",
    "StopIteration": "next(iter(()))",
}
PEERS = {
    "peers end": "pass",
    "peers wait": "dist.barrier()",
    "peers sleep": "time.sleep(0.5)",
    "peers exchange": "ddp.barrier()",
}
"""What the other ranks do meanwhile."""


def exception(draw: Draw) -> Case:
    size, every = draw.size(), EXCEPTIONS | LEAVE_BY_BASE_EXCEPTION
    ranks, phase, kind, peers = draw.ranks(size), draw.phase(), draw.one(every), draw.one(PEERS)
    lines = on(ranks, every[kind], PEERS[peers])
    return Case(
        f"{kind} on {ranks} in {phase}, {peers}",
        PHASES[phase],
        size,
        **in_phase(phase, lines),
        spares_ranks=len(ranks) == size,
    )


def in_call_and_teardown(draw: Draw) -> Case:
    size = draw.size()
    lines = on(draw.ranks(size), "raise ValueError('broken')")
    truth = frozenset({"failed+error"})
    return Case("fails in call and teardown", truth, size, body=lines, teardown=lines)


def after_a_collective(draw: Draw) -> Case:
    """A wrong sum, on all ranks, or on one that computes it wrongly."""
    size = draw.size()
    ranks = draw.ranks(size)
    body = f"dist.barrier()\n{on(ranks, 'assert total() == 99', 'total()')}\ndist.barrier()"
    spares = len(ranks) == size
    return Case(f"wrong sum on {ranks}", FAILED, size, body, spares_ranks=spares)


def skip(draw: Draw) -> Case:
    """A skip on all ranks for one reason is one; any other is a failure."""
    size = draw.size()
    ranks = draw.ranks(size)
    everywhere = len(ranks) == size
    phase = draw.one(["setup", "call"])
    if everywhere and size > 1 and draw.chance(0.3):
        lines = "pytest.skip(f'for reason {ddp.rank}')"
        truth = frozenset({"failed", "error"})
        return Case(f"unlike skips in {phase}", truth, size, **in_phase(phase, lines))
    lines = on(ranks, "pytest.skip('no data')")
    truth = SKIPPED if everywhere else frozenset({"failed", "error"})
    return Case(f"skip on {ranks} in {phase}", truth, size, **in_phase(phase, lines))


def skip_and_failure(draw: Draw) -> Case:
    size = draw.size(2)
    body = on([draw.one(range(size))], "pytest.skip('no data')", "assert ddp.rank < 0")
    return Case("skip on one, failure on others", FAILED, size, body)


def skip_mark(draw: Draw) -> Case:
    decorators = ("pytest.mark.skip(reason='marked')",)
    return Case("skip mark", SKIPPED, draw.size(), "os._exit(1)", decorators=decorators)


def expected_failure(draw: Draw) -> Case:
    """All ranks xfailed, or some did and the others passed: xfailed."""
    size = draw.size()
    ranks = draw.ranks(size)
    strict = draw.chance(0.5)
    decorators = (f"pytest.mark.xfail(reason='known', strict={strict})",)
    body = on(ranks, "raise ValueError('expected')")
    return Case(f"xfail on {ranks}", XFAILED, size, body, decorators=decorators)


def unexpected_pass(draw: Draw) -> Case:
    strict = draw.chance(0.5)
    decorators = (f"pytest.mark.xfail(reason='mended', strict={strict})",)
    truth = FAILED if strict else XPASSED
    return Case(f"xpass, strict={strict}", truth, draw.size(), "total()", decorators=decorators)


def no_expected_failure(draw: Draw) -> Case:
    """A crash is never an expected failure."""
    size = draw.size()
    decorators = ("pytest.mark.xfail(reason='known')",)
    body = on([draw.one(range(size))], draw.one(["os.abort()", "os._exit(0)"]))
    kind = "crash under xfail"
    return Case(kind, FAILED, size, body, decorators=decorators, spares_ranks=False)


def subtest(draw: Draw) -> Case:
    size = draw.size()
    ranks = draw.ranks(size)
    body = f"with subtests.test(n=1):\n    assert ddp.rank not in {ranks}\ndist.barrier()"
    return Case(f"subtest on {ranks}", FAILED, size, body, wants=("subtests",))


def lost_fixture(draw: Draw) -> Case:
    return Case("no such fixture", ERROR, draw.size(), "pass", wants=("no_such_fixture",))


def warning(draw: Draw) -> Case:
    return Case("warns", PASSED, draw.size(), "warnings.warn(f'here {ddp.rank}')")


def pytest_exit(draw: Draw) -> Case:
    size = draw.size()
    body = on(draw.ranks(size), "pytest.exit('enough', returncode=7)")
    return Case("pytest.exit", ANYTHING, size, body, stops=True, spares_ranks=False)


FAILURES = (
    *(exception, exception, exception, exception, in_call_and_teardown, after_a_collective),
    *(skip, skip, skip_and_failure, skip_mark, expected_failure, unexpected_pass),
    *(no_expected_failure, subtest, lost_fixture, warning),
)
