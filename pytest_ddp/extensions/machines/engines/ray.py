"""Machines of a Ray cluster that is up: an actor on each node but pytest's own.

An actor's process is Ray's: it has threads, and Ray's libraries in it. So it does not fork: it
starts an interpreter, and holds that one's stdin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias

from pytest_ddp.extensions.machines.engines import actor, scaler, sending
from pytest_ddp.extensions.machines.engines.engine import (
    ADDRESS,
    Engine,
    EngineError,
    MeetingPoint,
    ShowWait,
)
from pytest_ddp.extensions.machines.engines.options import EngineName as Name
from pytest_ddp.extensions.machines.engines.options import Machines
from pytest_ddp.launch.gpus import Build, torch_build
from pytest_ddp.system.stdlib import os, socket

_START = (
    "Start one: `ray start --head` on this machine, and `ray start --address=HOST:6379` on the "
    "others; or set RAY_ADDRESS to that of one of which this machine is a node"
)
_ASK_LIMIT = 10.0
_ROOM_LIMIT = 30.0
"""Seconds for Ray to set a CPU aside on each node: where one is free that takes milliseconds."""
_CPUS = 1
_NODE_ID = "ray.io/node-id"
"""A label that Ray gives to each node."""

_Node: TypeAlias = dict[str, Any]


@dataclass
class Ray(Engine):
    """The cluster that this machine is a node of."""

    count: int | None
    """Number of nodes, with that of pytest; None for all."""
    python: str | None
    """The interpreter on the other nodes; None for the path of this one."""
    address: str | None
    """The address of this machine, if the user has set it; None otherwise."""

    name: ClassVar[Name] = Name.RAY

    @classmethod
    def for_session(
        cls, machines: Machines, python: str | None, environment: Mapping[str, str]
    ) -> Ray:
        if find_spec("ray") is None:
            raise EngineError("Ray is not installed here: pip install 'pytest-ddp[ray]'")
        return cls(machines.count, python, environment.get(ADDRESS))

    def __post_init__(self) -> None:
        self._others: list[_Node] = []
        self._group: Any = None
        self._running: dict[Any, int] = {}
        """The node of each actor, by what it will return."""
        self._keepers: list[Any] = []
        """References to the actors, which end without one."""
        self._ended: dict[int, str] = {}

    @property
    def nodes(self) -> int:
        return 1 + len(self._others)

    def listens_at(self, show_wait: ShowWait) -> tuple[str, int]:
        """Look at the cluster; the address by which Ray knows this node.

        Raises:
            EngineError: there is no cluster, or too small a one.
        """
        _check_address(os.environ.get("RAY_ADDRESS", ""))
        import ray  # noqa: PLC0415 - takes seconds, and is there where Ray is used

        try:
            # Beside a local cluster the word auto keeps Ray from starting one of its own.
            ray.init(address="auto", configure_logging=False, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            first = str(error).partition("\n")[0].rstrip(". ")
            raise EngineError(f"no Ray cluster is up here: {first}. {_START}") from error
        own_id = ray.get_runtime_context().get_node_id()
        own = next(node for node in ray.nodes() if node["NodeID"] == own_id)
        why = ""
        if self.count is not None and 1 + len(_able(_others(own))) < self.count:
            wait = scaler.ScalerWait(self.count, bool(_able([own])), show_wait)
            why = wait.until(lambda: [own, *_able(_others(own))])
        self._others = self._chosen(_others(own), why)
        return self.address or own["NodeManagerAddress"], 0

    def _chosen(self, others: list[_Node], why: str) -> list[_Node]:
        able = _able(others)
        # The same nodes get the same numbers in each session.
        able.sort(key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
        if self.count is None:
            return able
        if len(able) < self.count - 1:
            without = len(others) - len(able)
            more = f", and {without} without a CPU" if without else ""
            raise EngineError(
                f"{self.count} machines wanted, {1 + len(able)} in the Ray cluster{more}: "
                f"{why}. Ask for --ddp-machines=ray:{1 + len(able)}, or start others by `ray start "
                "--address=HOST:6379`"
            )
        return able[: self.count - 1]

    def bring(self, meeting: MeetingPoint) -> None:
        """Set a CPU and all free GPUs aside on each node, and have an actor start the agent there.

        Raises:
            EngineError: not every node has a CPU that is free.
        """
        if not self._others:
            return
        import ray  # noqa: PLC0415 - as above
        from ray.util.placement_group import placement_group  # noqa: PLC0415
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            PlacementGroupSchedulingStrategy,
        )

        gpus = _free_gpus([node["NodeID"] for node in self._others])
        bundles: list[dict[str, float]] = [{"CPU": _CPUS, "GPU": count} for count in gpus]
        # Bundles that are spread could lie on the node of pytest as well.
        places = [{_NODE_ID: node["NodeID"]} for node in self._others]
        self._group = placement_group(bundles, "STRICT_SPREAD", bundle_label_selector=places)
        if not self._group.wait(_ROOM_LIMIT):
            raise EngineError(self._busy_words())
        # The workers' interpreter need not have this package.
        ray.cloudpickle.register_pickle_by_value(actor)
        kind: Any = ray.remote(num_cpus=_CPUS)(actor.AgentActor)
        for bundle, count in enumerate(gpus):
            place = PlacementGroupSchedulingStrategy(self._group, bundle)
            keeper = kind.options(scheduling_strategy=place, num_gpus=count).remote()
            self._keepers.append(keeper)
            node = bundle + 1
            role = sending.role_for_stdin(node, meeting, self.python)
            self._running[keeper.keep.remote(sending.command(self.python), role)] = node

    def _busy_words(self) -> str:
        import ray  # noqa: PLC0415 - as above

        free, all_ = (of().get("CPU", 0) for of in (ray.available_resources, ray.cluster_resources))
        return (
            f"Ray set no CPU aside on each of {len(self._others)} nodes beside this one within "
            f"{_ROOM_LIMIT:.0f} s: {free:g} of {all_:g} CPUs of the cluster are free. `ray status` "
            "lists their users; --ddp-machines=ray:N takes fewer nodes"
        )

    def ended(self) -> Mapping[int, str]:
        import ray  # noqa: PLC0415 - as above

        done, _ = ray.wait([*self._running], num_returns=len(self._running), timeout=0)
        for result in done:
            number = self._running[result]
            address = self._others[number - 1]["NodeManagerAddress"]
            try:
                code, said = ray.get(result)
                words = sending.how_it_ended("its agent", code, said)
                words = f"{words}.{sending.way_to_python(code)}"
            except ray.exceptions.RayError as error:
                words = f"its actor has ended: {str(error).strip().splitlines()[-1]}"
            self._ended[number] = f"node {number} ({address}) did not come: {words}"
        return self._ended

    def hint(self) -> str:
        return "That is the address by which Ray knows this machine; MASTER_ADDR names another one"

    def end(self) -> None:
        """Give the actors' CPUs back, which ends them."""
        import ray  # noqa: PLC0415 - as above
        from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

        if self._group is not None:
            remove_placement_group(self._group)
        ray.shutdown()


def _free_gpus(node_ids: list[str]) -> list[int]:
    """The number of whole GPUs that are free on each node; 0 if torch could not use them."""
    if torch_build() is Build.CPU:
        return [0] * len(node_ids)
    # Ray's public functions report what is free in the whole cluster only.
    from ray._private.state import available_resources_per_node  # noqa: PLC0415 - as above

    free = available_resources_per_node()
    return [int(free.get(node_id, {}).get("GPU", 0)) for node_id in node_ids]


def _others(own: _Node) -> list[_Node]:
    import ray  # noqa: PLC0415 - as above

    return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != own["NodeID"]]


def _able(nodes: list[_Node]) -> list[_Node]:
    return [node for node in nodes if node["Resources"].get("CPU", 0) >= _CPUS]


def _check_address(address: str) -> None:
    """Check that something listens at RAY_ADDRESS: Ray itself would try for minutes.

    Raises:
        EngineError: nothing does.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return  # Ray finds it itself, or reports what is wrong with it
    try:
        socket.create_connection((host, int(port)), timeout=_ASK_LIMIT).close()
    except OSError as error:
        words = f"no answer at RAY_ADDRESS={address} ({error})"
        raise EngineError(f"no Ray cluster is up here: {words}. {_START}") from error
