"""MEM-03 on several machines, simulated: each has the variables that torchrun sets and a folder.

Only for caches that are built once for each machine: the check cannot know what machines share
of others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

from ddp_conformance.caches import judge
from ddp_conformance.caches.opening import Source, first_look_in_lockstep
from ddp_conformance.caches.subjects import Cache
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Failed, Record
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, describe, judge_each, record
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.lockstep.machines import (
    Place,
    launched_by,
    ranks_of_machines,
    several_machines,
)
from ddp_conformance.lockstep.same_calls import demand_same_calls, uncut

ONCE_PER_NODE = "once_per_node"


def find_bad_build_on_machines(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-03 on simulated machines; empty if no number of machines has equally many ranks each.

    Undecided if the ranks' collectives differ and nothing else is wrong."""
    size = ranks.world_size
    machines = ranks_of_machines(size)
    if ONCE_PER_NODE not in subject.traits or len(machines) == 1:
        return ()
    cases = cases_of(ranks, (2 * size + 3,))
    runs = record(subject, ranks, cases, lambda s, case: opening_there(s, case, ranks))
    found = judge_each(runs, lambda run: judge.judge_who_raised(run.history))
    found += judge_each(uncut(runs), lambda run: judge.judge_built_in_each(run.history, machines))
    if not found:
        demand_same_calls(subject, runs, "WRT-04")
    where = f"as on {len(machines)} machines under torchrun, "
    return tuple(replace(one, what=where + one.what) for one in found)


def opening_there(subject: Cache, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Open the cache on each rank of each machine, and record its content."""
    place = Place(case.rank, case.world_size, several_machines(case.world_size))
    own = _own_folder(case, place, ranks)
    source = Source(own, place.ranks_here)
    with launched_by("torchrun", place):
        found, problem = first_look_in_lockstep(subject, own, source, ranks)
    if isinstance(problem, FileExistsError):
        raise problem  # maybe a name in memory, which real machines do not share
    if problem is not None:
        found.append(Failed(case.rank, describe(problem)))
    yield from found


def _own_folder(case: Case, place: Place, ranks: Ranks) -> Case:
    """The case with the folder of this machine, which has the prepared files."""
    folder = case.directory.with_name(f"{case.directory.name}-machine-{place.machine}")
    if place.local_rank == 0:
        shutil.copytree(case.directory, folder)
    ranks.gather(None)
    return replace(case, directory=folder)
