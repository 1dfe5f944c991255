"""Makes the plan for a marked test, from its item, its mark and the options.

Pure: no process, no GPU and no torch is used here. The same arguments give the same plan in every
process, so that a spawned rank agrees with the controller.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pytest

from pytest_ddp.protocol.host_messages import World
from pytest_ddp.settings.devices import Choice, choose
from pytest_ddp.settings.layout import Layout, least_machines
from pytest_ddp.settings.mark import WORLD_SIZE_PARAM, Mark
from pytest_ddp.settings.options import CheckCollectives, Options
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE, WorldSize, mark_error, shown

_SEED_RANGE = 2**32
"""NumPy takes no larger seed."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All decisions on a test before it is sent to ranks."""

    nodeid: str
    world_size: int
    """Number of ranks; 0 only for a skipped test with a rank for each GPU, and no GPU."""
    backend: str
    """The backend in torch's syntax: ``gloo``, ``cpu:gloo,cuda:nccl``."""
    device: str
    """Type of the ranks' device."""
    devices: tuple[int, ...] | None
    """The GPU of each rank, as index into the visible ones of its machine; None without GPUs."""
    ranks_per_gpu: int
    """How many ranks may share a GPU."""
    init: bool
    """Whether the process group is initialised before the test's fixtures run."""
    isolate: bool
    """Whether the test gets fresh ranks."""
    module_state: str
    """Tests with the same name share what they change in modules; empty for none."""
    timeout: float
    """Seconds for the whole test."""
    seeds: tuple[int, ...]
    """Seed of each rank's random number generators, below 2**32."""
    env: dict[str, str]
    """Environment variables that the mark sets in the ranks."""
    check_collectives: bool
    """Whether ranks that ended must have issued the same collectives."""
    skip: str | None
    """Why the test cannot run here; None if it can."""
    keeps_group: bool = False
    """Whether a default process group that the test leaves stays for those after it."""
    own_tmp_path: bool = False
    """Whether each rank has a ``tmp_path`` of its own."""
    nodes: tuple[int, ...] = ()
    """The machine of each rank; empty in a session on one machine."""
    driven: bool = False
    """Whether a plugin of the pytest process decides how often it runs."""

    @property
    def world(self) -> World:
        """The world of the ranks that can run it."""
        return World(
            self.backend,
            self.world_size,
            self.devices,
            self.init,
            self.keeps_group,
            self.device,
            self.nodes,
        )


PLAN = pytest.StashKey[LaunchPlan]()
"""The key, in an item, of the plan of its last attempt."""


def make_plan(item: pytest.Item, mark: Mark, options: Options, layout: Layout) -> LaunchPlan:
    """Decide how to run ``item``.

    Args:
        item: the test.
        mark: its marks.
        options: for arguments that are not in the marks.
        layout: where ranks can run.

    Raises:
        pytest.UsageError: the marks contradict the test's parametrization, or themselves.
    """
    wanted = _wanted_size(item, mark)
    _check_nodes(item, mark, wanted)
    chosen = _choice(item, mark, options, wanted, *layout.gpus_for(wanted, mark.nodes))
    placed = layout.place(wanted, mark.nodes, chosen)
    return LaunchPlan(
        nodeid=item.nodeid,
        world_size=placed.world_size,
        backend=chosen.backend,
        device=chosen.device,
        devices=placed.devices,
        ranks_per_gpu=chosen.ranks_per_gpu,
        init=mark.init,
        isolate=options.isolate if mark.isolate is None else mark.isolate,
        module_state=mark.module_state,
        timeout=options.timeout if mark.timeout is None else mark.timeout,
        seeds=make_seeds(item.nodeid, mark, options, placed.world_size),
        env=dict(mark.env),
        check_collectives=options.check_collectives is CheckCollectives.ON,
        skip=placed.skip,
        nodes=placed.nodes,
        keeps_group=mark.keeps_group,
        own_tmp_path=mark.own_tmp_path,
    )


def _wanted_size(item: pytest.Item, mark: Mark) -> WorldSize:
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    wanted: WorldSize = params.get(WORLD_SIZE_PARAM, mark.world_sizes[0])
    if mark.listed != (WORLD_SIZE_PARAM in params) or wanted not in mark.world_sizes:
        # The test was parametrized before it had this mark.
        given = list(mark.world_sizes) if mark.listed else mark.world_sizes[0]
        raise mark_error(
            item,
            f"@pytest.mark.ddp(world_size={shown(given)}): a mark on a pytest.param, or one added "
            f"during collection, cannot bring or replace a list of world sizes. Put the list into "
            f"the mark of the function.",
        )
    return wanted


def _check_nodes(item: pytest.Item, mark: Mark, wanted: WorldSize) -> None:
    if mark.nodes is not None and wanted != "gpus" and mark.nodes > wanted:
        raise mark_error(
            item,
            f"@pytest.mark.ddp(nodes={mark.nodes}, world_size={wanted}): each machine has a "
            f"rank at least. Ask for as many machines as ranks, or fewer.",
        )
    if mark.nodes is not None and wanted != "gpus" and mark.nodes < least_machines(wanted):
        raise mark_error(
            item,
            f"@pytest.mark.ddp(nodes={mark.nodes}, world_size={wanted}): one machine takes "
            f"{MAX_LOCAL_WORLD_SIZE} ranks at most. Ask for {least_machines(wanted)} machines, or "
            f"more.",
        )


def _choice(
    item: pytest.Item, mark: Mark, options: Options, wanted: WorldSize, gpus: int, kind: str
) -> Choice:
    # With "gpus" there are as many ranks as fit, so one rank stands for all of them here.
    world_size = 1 if wanted == "gpus" else wanted
    try:
        return choose(mark, options, world_size, gpus or (wanted == "gpus"), kind)
    except ValueError as error:
        raise mark_error(item, f"@pytest.mark.ddp: {error}.") from None


def make_seeds(name: str, mark: Mark, options: Options, world_size: int) -> tuple[int, ...]:
    """Return one seed for each rank, from a name such as the node id.

    They are consecutive, so that no two are equal by chance. The first is a digest, because
    ``hash`` of a string differs between processes.
    """
    seed = mark.seed if isinstance(mark.seed, int) else options.seed
    digest = hashlib.sha256(f"{seed} {name}".encode(errors="surrogatepass")).digest()
    first = int.from_bytes(digest[:4], "big")
    step = 0 if mark.seed == "same" else 1
    return tuple((first + step * rank) % _SEED_RANGE for rank in range(world_size))
