"""Cases that can never end, or not in time."""

from __future__ import annotations

from tests.chaos.case import ERROR, FAILED, PHASES, TEARDOWN_ERROR, Case, Draw, in_phase, on

LIMIT = 3.0
"""Seconds, where the deadline is to end it."""

DEADLOCKS = {
    "missing rank": "if ddp.rank != {rank}:\n    dist.barrier()",
    "lonely rank": "if ddp.rank == {rank}:\n    total()",
    "second collective": "total()\nif ddp.rank == {rank}:\n    total()",
    "wrong order": """
        if ddp.rank == {rank}:
            dist.barrier()
            total()
        else:
            total()
            dist.barrier()
    """,
    "unlike sizes": "dist.all_reduce(torch.ones(2 + (ddp.rank == {rank})))",
    "unlike sizes of a reduction": "dist.reduce(torch.ones(2 + (ddp.rank == {rank})), {peer})",
    "unlike roots": "dist.broadcast(torch.ones(1), 0 if ddp.rank == {rank} else 1)",
    "unlike roots of objects": "dist.gather_object(1, [0] * ddp.world_size, ddp.rank)",
    "recv without send": "if ddp.rank == {rank}:\n    dist.recv(torch.ones(1), {peer})",
    "mutual recv": "if ddp.rank < 2:\n    dist.recv(torch.ones(1), 1 - ddp.rank)",
    "crossed groups": """
        groups = dist.new_group(), dist.new_group()
        for group in groups if ddp.rank == {rank} else groups[::-1]:
            dist.all_reduce(torch.ones(1), group=group)
    """,
    "exchange and collective": """
        if ddp.rank == {rank}:
            ddp.barrier()
        else:
            dist.barrier()
    """,
    "exchange without a peer": "if ddp.rank == {rank}:\n    ddp.gather(1)",
    "unlike exchanges": "ddp.gather(1) if ddp.rank == {rank} else ddp.barrier()",
    "loop of unlike length": "for _ in range(3 + (ddp.rank == {rank})):\n    total()",
}
SILENT = {
    "second collective, not waited for": """
        total()
        if ddp.rank == {rank}:
            KEPT.append(dist.all_reduce(torch.ones(1), async_op=True))
    """,
    "unlike reductions": """
        operation = dist.ReduceOp.MAX if ddp.rank == {rank} else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(1), op=operation)
    """,
    "unlike roots of a reduction": "dist.reduce(torch.ones(1), 1 if ddp.rank == {rank} else 0)",
}
"""Ranks come to their end, or most of them, but have issued unlike collectives."""
WAITS = {
    "sleep": "time.sleep(600)",
    "busy": "while True:\n    pass",
    "C": "libc.sleep(600)",
    "C with the GIL": "holding_the_gil.sleep(600)",
    "child": "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
    "lock": "threading.Event().wait()",
    "stopped": "os.kill(getpid(), signal.SIGSTOP)",
    "catches all": """
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
    """,
    "deaf": """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)
    """,
}


def deadlock(draw: Draw) -> Case:
    size = draw.size(2)
    rank, peer = draw.some(range(size), 2)
    kind, phase = draw.one(DEADLOCKS), draw.phase()
    lines = DEADLOCKS[kind].format(rank=rank, peer=peer)
    return Case(
        f"deadlock: {kind} by {rank} in {phase}",
        _from(phase),
        size,
        **in_phase(phase, lines),
        spares_ranks=False,
    )


def _from(phase: str) -> frozenset[str]:
    """Fixtures of a peer may answer in a later phase what a rank has issued alone."""
    phases = list(PHASES)
    return frozenset().union(*(PHASES[later] for later in phases[phases.index(phase) :]))


def silent(draw: Draw) -> Case:
    size = draw.size(2)
    kind = draw.one(SILENT)
    body = SILENT[kind].format(rank=draw.one(range(size)))
    return Case(f"unlike: {kind}", FAILED, size, body, spares_ranks=False)


def across_phases(draw: Draw) -> Case:
    """One rank issues in its call what the others issue in teardown, and one more or less."""
    size = draw.size(2)
    one = [draw.one(range(size))]
    setup, teardown = on(one, "total()"), on(one, "pass", "total()\ntotal()")
    truth = FAILED | ERROR | TEARDOWN_ERROR
    kind = "deadlock: setup against teardown"
    return Case(kind, truth, size, setup=setup, teardown=teardown, spares_ranks=False)


def timeout(draw: Draw) -> Case:
    size = draw.size()
    ranks, phase, wait = draw.ranks(size), draw.phase(), draw.one(WAITS)
    peers = draw.one(["pass", "dist.barrier()"])
    return Case(
        f"timeout: {wait} on {ranks} in {phase}, others {peers}",
        PHASES[phase],
        size,
        **in_phase(phase, on(ranks, WAITS[wait], peers)),
        mark={"timeout": LIMIT},
        spares_ranks=False,
    )


HANGS = (deadlock, deadlock, deadlock, silent, across_phases, timeout, timeout)
