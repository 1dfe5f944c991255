"""Cases in which ranks die, by themselves or by a peer's hand."""

from __future__ import annotations

from tests.acceptance.ends.deaths import ENDS
from tests.chaos.case import FAILED, PHASES, Case, Draw, in_phase, on
from tests.chaos.kinds.failures import PEERS

WAYS = {
    **{death.name: death.line for death in ENDS},
    "SIGKILL of its group": "os.killpg(0, signal.SIGKILL)",
    "SIGKILL in a thread": """
        threading.Thread(target=os.kill, args=(getpid(), signal.SIGKILL)).start()
        time.sleep(60)
    """,
}
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGBUS")


def own(draw: Draw) -> Case:
    size = draw.size()
    ranks, phase, way, peers = draw.ranks(size), draw.phase(), draw.one(WAYS), draw.one(PEERS)
    return Case(
        f"{way} on {ranks} in {phase}, {peers}",
        PHASES[phase],
        size,
        **in_phase(phase, on(ranks, WAYS[way], PEERS[peers])),
        spares_ranks=False,
    )


def by_a_peer(draw: Draw) -> Case:
    """The victim waits for the signal, so that it dies in a part of its own."""
    size = draw.size(2)
    phase, sign = draw.phase(), draw.one(SIGNALS)
    killer, victim = draw.some(range(size), 2)
    waits = draw.one(["time.sleep(60)", "dist.barrier()", "while True:\n    pass"])
    kill = f"time.sleep(0.2)\nos.kill(found[{victim}], signal.{sign})"
    lines = f"found = pids()\n{on([killer], kill, on([victim], waits))}"
    return Case(
        f"{sign} by {killer} to {victim} in {phase}, which waits in {waits!r}",
        PHASES[phase],
        size,
        **in_phase(phase, lines),
        spares_ranks=False,
    )


def after_its_part(draw: Draw) -> Case:
    """A rank has ended its part of the test when a peer kills it."""
    size = draw.size(2)
    killer, victim = draw.some(range(size), 2)
    kill = f"time.sleep(1)\nos.kill(found[{victim}], signal.SIGKILL)\ntime.sleep(1)"
    return Case(
        f"SIGKILL by {killer} to {victim} after its part",
        frozenset({"failed", "error", "passed+error"}),
        size,
        body=f"found = pids()\n{on([killer], kill)}",
        spares_ranks=False,
    )


def of_all_by_one(draw: Draw) -> Case:
    size = draw.size(2)
    killer = draw.one(range(size))
    kill = "for pid in found:\n    os.kill(pid, signal.SIGKILL)"
    body = f"found = pids()\n{on([killer], kill, 'time.sleep(60)')}"
    return Case(f"{killer} kills all", FAILED, size, body, spares_ranks=False)


def in_a_collective(draw: Draw) -> Case:
    """A rank dies between collectives that its peers go on to issue."""
    size, way = draw.size(2), draw.one(["sigkill", "exit0", "sigsegv"])
    death = on([draw.one(range(size))], f"if n == 7:\n    {WAYS[way]}")
    body = "for n in range(20):\n" + "\n".join(
        f"    {line}" for line in f"{death}\ntotal()".splitlines()
    )
    return Case(f"{way} between collectives", FAILED, size, body, spares_ranks=False)


DEATHS = (own, own, own, own, by_a_peer, by_a_peer, after_its_part, of_all_by_one, in_a_collective)
