"""Which way each test of a suite comes to run on ranks, or why it does not."""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_ddp.migrate.suite import GROUP_OF_ONE, INIT, Class, Function, Module, Suite

_HARNESS = "torch.testing._internal"
_SPAWN = {
    f"torch.multiprocessing.{name}"
    for name in ("spawn", "spawn.spawn", "start_processes", "spawn.start_processes", "SpawnContext")
}
_MODULES = ("torch.multiprocessing", "multiprocessing")
_PROCESS = {f"{module}.{name}" for module in _MODULES for name in ("Process", "Pool")}
_CONTEXT = {f"{module}.get_context" for module in _MODULES}
_START_METHOD = {f"{module}.set_start_method" for module in _MODULES}
_SUBPROCESS = {
    f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")
}
_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "mpirun",
)
_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
_RANKS = {
    f"torch.distributed.{name}"
    for name in (
        *(
            "init_process_group",
            "new_group",
            "get_rank",
            "get_world_size",
            "barrier",
            "send",
            "recv",
        ),
        *("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "all_to_all"),
        *("all_to_all_single", "broadcast", "broadcast_object_list", "gather", "reduce", "scatter"),
        *("reduce_scatter", "reduce_scatter_tensor", "init_device_mesh", "monitored_barrier"),
        "device_mesh.init_device_mesh",
    )
} | {"torch.nn.parallel.DistributedDataParallel", "torch.distributed.fsdp.fully_shard"}
"""What has no meaning without other ranks."""

_METHOD = re.compile(r"(?:self|cls)\.(\w+)")


class Route(enum.Enum):
    """How a test runs on ranks; the value is what the command is told."""

    DDP = "a ddp test already"
    TESTCASE = "--ddp-adopt=testcase"
    SPAWN = "--ddp-adopt=spawn"
    EVERYWHERE = "--ddp-everywhere=N"
    NONE = "not aboard"
    PLAIN = "needs no ranks"


@dataclass(frozen=True, slots=True)
class Found:
    """A test, its way and the reason."""

    module: Module
    test: Function
    route: Route
    reason: str = ""


def routes(suite: Suite) -> Iterator[Found]:
    """Of each test of the files that were asked for, in their order."""
    for module in suite.modules:
        if module.is_asked_for:
            for test in module.tests:
                yield Found(module, test, *_route(suite, module, test))


def _route(suite: Suite, module: Module, test: Function) -> tuple[Route, str]:
    classes = list(_classes(suite, module, test))
    marks = test.marks.union(*(cls.marks for cls in classes), module.functions[""].mentions)
    if "pytest.mark.ddp" in marks:
        return Route.DDP, ""
    for cls in classes:
        if harness := _harness(cls):
            return harness
    reach = list(_reach(suite, module, test, classes))
    outside = list(_outside(suite, module))
    return _by_processes(reach, outside) or _by_groups(reach, outside) or (Route.PLAIN, "")


def _classes(suite: Suite, module: Module, test: Function) -> Iterator[Class]:
    """The class of a test and those that it derives from, as far as the suite defines them."""
    left = [(module, test.name.rpartition("::")[0])]
    seen = set()
    while left:
        home, name = left.pop(0)
        cls = home.classes.get(name)
        if cls is None or (home.path, name) in seen:
            continue
        seen.add((home.path, name))
        yield cls
        found = (suite.find(base, home) for base in cls.bases)
        left += [place for place in found if place is not None]


def _harness(cls: Class) -> tuple[Route, str] | None:
    """What torch's or DeepSpeed's test cases make of a class."""
    for base in cls.bases:
        for harness in ("MultiProcessTestCase", "MultiProcContinuousTest"):
            if base.startswith(_HARNESS) and _derives(base, harness):
                return Route.TESTCASE, f"derives from torch's {harness}"
        if base.startswith(_HARNESS) and _derives(base, "MultiThreadedTestCase"):
            return Route.PLAIN, ""  # its ranks are threads
    if "_launch_procs" in cls.methods and cls.methods & {"_dist_run", "_dist_init"}:
        return Route.TESTCASE, "derives from DeepSpeed's DistributedTest, or a copy of it"
    return None


def _derives(name: str, harness: str) -> bool:
    """Asked of torch itself, which knows more such classes than a list would."""
    if name.rpartition(".")[2] == harness:
        return True
    module, _, attribute = name.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), attribute)
        common = importlib.import_module(f"{_HARNESS}.common_distributed")
    except (ImportError, AttributeError, SystemExit):  # some end the process without a backend
        return False
    return isinstance(cls, type) and issubclass(cls, getattr(common, harness))


def _reach(
    suite: Suite, module: Module, test: Function, classes: list[Class]
) -> Iterator[Function]:
    """The test, and all that it comes to: helpers, fixtures, methods of its classes."""
    lives_in = [place for cls in classes for place in _homes(suite, cls)]
    left: list[tuple[Module, Function]] = [(module, test)]
    left += [
        (m, f)
        for m in (module, *suite.conftests(module))
        for f in m.functions.values()
        if f.is_autouse
    ]
    left += [
        (home, home.functions[name])
        for home, cls in lives_in
        for set_up in ("setUp", "setup_method", "setUpClass", "setup_class")
        if (name := f"{cls.name}::{set_up}") in home.functions
    ]
    seen = set()
    while left:
        home, function = left.pop()
        if (home.path, function.name) in seen:
            continue
        seen.add((home.path, function.name))
        yield function
        left += _next(suite, home, function, lives_in)


def _homes(suite: Suite, cls: Class) -> Iterator[tuple[Module, Class]]:
    return ((module, cls) for module in suite.modules if module.classes.get(cls.name) is cls)


def _next(
    suite: Suite, home: Module, function: Function, lives_in: list[tuple[Module, Class]]
) -> Iterator[tuple[Module, Function]]:
    for name in function.mentions:
        if method := _METHOD.match(name):
            for module, cls in lives_in:
                if found := module.functions.get(f"{cls.name}::{method[1]}"):
                    yield module, found
        elif (place := suite.find(name, home)) and (found := place[0].functions.get(place[1])):
            yield place[0], found
    for fixture in function.asks_for:
        for module in (home, *suite.conftests(home)):
            if (found := module.functions.get(fixture)) and "pytest.fixture" in found.marks:
                yield module, found
                break


def _outside(suite: Suite, module: Module) -> Iterator[Function]:
    """What runs before any test: the files themselves, and hooks."""
    yield module.functions[""]
    for conftest in suite.conftests(module):
        yield conftest.functions[""]
        yield from (f for f in conftest.functions.values() if f.name.startswith("pytest_"))


def _by_processes(reach: list[Function], outside: list[Function]) -> tuple[Route, str] | None:
    """What starts processes of its own."""
    mentions, strings = _all(reach)
    if mentions & _SUBPROCESS and (launcher := _launcher(strings)):
        return Route.NONE, f"starts {launcher} in a subprocess, and may go on to do so"
    spawns = mentions & (_SPAWN | (_CONTEXT if "spawn" in strings else set()))
    all_mentions, all_strings = _all([*reach, *outside])
    if all_mentions & _START_METHOD and "spawn" in all_strings:
        spawns |= mentions & _PROCESS
    if spawns and strings.isdisjoint({"fork", "forkserver"}):
        return Route.SPAWN, f"calls {min(spawns, key=len)}"
    if spawns or mentions & (_PROCESS | _CONTEXT):
        return Route.NONE, "forks its processes, which costs little and is left alone"
    return None


def _all(functions: list[Function]) -> tuple[frozenset[str], frozenset[str]]:
    """What they mention together, and their strings."""
    mentions = frozenset[str]().union(*(function.mentions for function in functions))
    return mentions, frozenset[str]().union(*(function.strings for function in functions))


def _launcher(strings: frozenset[str]) -> str:
    words = {word for text in strings for word in text.split()}
    return next((name for name in _LAUNCHERS if name in words), "")


def _by_groups(reach: list[Function], outside: list[Function]) -> tuple[Route, str] | None:
    """What uses a process group or its place, without having started anybody."""
    mentions, strings = _all([*reach, *outside])
    if GROUP_OF_ONE in mentions:
        return None
    inits = INIT in mentions or (strings & _VARIABLES and "os.environ" in mentions)
    used = _all(reach)[0] & _RANKS
    if inits and used and _all(outside)[0] & (_SPAWN | _PROCESS | _CONTEXT):
        return Route.NONE, "uses processes that are started outside of tests"
    if inits and used:
        return Route.EVERYWHERE, f"calls {min(used, key=len)}, and expects to be a rank"
    return None
