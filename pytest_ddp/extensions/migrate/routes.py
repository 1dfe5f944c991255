"""Decides by which route each test of a suite can run on ranks, or why it cannot."""

from __future__ import annotations

import enum
import importlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_ddp.extensions.migrate.suite import (
    DEFAULT,
    GROUP_OF_ONE,
    INIT,
    IS_INITIALIZED,
    Class,
    Function,
    Module,
    Suite,
)

_HARNESS = "torch.testing._internal"
_ELASTIC = {
    *(
        f"torch.distributed.launcher{api}.{n}"
        for api in ("", ".api")
        for n in ("elastic_launch", "launch_agent")
    ),
    *(f"torch.distributed.elastic.multiprocessing{api}.start_processes" for api in ("", ".api")),
}
_SPAWN = _ELASTIC | {
    f"torch.multiprocessing.{name}"
    for name in ("spawn", "spawn.spawn", "start_processes", "spawn.start_processes", "SpawnContext")
}
_MODULES = ("torch.multiprocessing", "multiprocessing")
_PROCESS = {f"{module}.{name}" for module in _MODULES for name in ("Process", "Pool")} | {
    "concurrent.futures.ProcessPoolExecutor"
}
_CONTEXT = {f"{module}.get_context" for module in _MODULES}
_START_METHOD = {f"{module}.set_start_method" for module in _MODULES}
_SUBPROCESS = {
    *(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")),
    *(f"asyncio.create_subprocess_{name}" for name in ("exec", "shell")),
    *("os.system", "os.popen"),
}
_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "mpirun",
)
_COMMANDS = ("torch.distributed.run.", "torch.distributed.launch.")
"""Launchers that are called as modules."""
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
        *("all_gather_single", "reduce_scatter_single", "gather_single"),
        "device_mesh.init_device_mesh",
    )
} | {"torch.nn.parallel.DistributedDataParallel", "torch.distributed.fsdp.fully_shard"}
"""Functions that make sense only with other ranks."""

_GUARDS = {
    IS_INITIALIZED,
    *(f"torch.distributed.{name}" for name in ("is_available", "is_torchelastic_launched")),
}
_HAVE_GROUP = {INIT, "torch.distributed.destroy_process_group"}
"""Who calls these, and asks whether there is a group, does so to have one."""
_SKIPS = {"pytest.skip", "pytest.mark.skipif", "unittest.skipIf", "unittest.skipUnless"}
_LAUNCHES = re.compile(
    r"spawn|launch|multi_?proc|distributed_?(test|run|exec)|dist_?test|"
    r"(run|test|exec)\w*_(distributed|dist|ranks)|^(DDP|FSDP|DeepSpeed)Strategy$",
    re.IGNORECASE,
)
"""Typical names of functions of other libraries that start ranks."""
_KNOWN = {"torch", "multiprocessing", "subprocess", "unittest", "pytest", "pexpect"}
_LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}
_STRATEGY = re.compile(r"(ddp|fsdp|deepspeed)(_\w+)?")
_LIBRARIES = _LIGHTNING | {"torch", "ignite", "accelerate", "deepspeed", "ray"}
"""If a file imports none of these, its spawning and launching is about something else."""
_METHODS = {"spawn", "fork", "forkserver"}
"""Multiprocessing's names for its start methods."""
_FORKS = re.compile(r"get_context\((fork\w*)\)$")
_METHOD = re.compile(r"(?:self|cls)\.(\w+)")


class Route(enum.Enum):
    """How a test runs on ranks; the value is what the command prints."""

    DDP = "a ddp test already"
    TESTCASE = "--ddp-adopt=testcase"
    SPAWN = "--ddp-adopt=spawn"
    EVERYWHERE = "--ddp-everywhere=N"
    NONE = "not on ranks"
    UNKNOWN = "not known"
    PLAIN = "needs no ranks"


@dataclass(frozen=True, slots=True)
class Found:
    """A test, its route and the reason."""

    module: Module
    test: Function
    route: Route
    reason: str = ""
    sizes: frozenset[int] = frozenset()
    """World sizes that the test's marks state; if it has none, those of its class or file."""


def routes(suite: Suite) -> Iterator[Found]:
    """The route of each test of the given files, in their order."""
    for module in suite.modules:
        if module.is_asked_for:
            for test in module.tests:
                yield Found(module, test, *_route(suite, module, test), _sizes(suite, module, test))


def _sizes(suite: Suite, module: Module, test: Function) -> frozenset[int]:
    classes = (cls.sizes for _, cls in _classes(suite, module, test))
    return next(filter(None, (test.sizes, *classes, module.functions[""].sizes)), frozenset())


def _route(suite: Suite, module: Module, test: Function) -> tuple[Route, str]:
    classes = list(_classes(suite, module, test))
    marks = test.marks.union(*(cls.marks for _, cls in classes), module.functions[""].mentions)
    if "pytest.mark.ddp" in marks:
        return Route.DDP, ""
    harnesses = [harness for _, cls in classes for harness in _harnesses(cls)]
    for harness in harnesses:
        if harness[0] is not Route.UNKNOWN:
            return harness
    reach = list(_reach(suite, module, test, classes))
    functions = [function for _, function in reach]
    outside = list(_outside(suite, module))
    return (
        _by_processes(functions, outside, _named(test, module, functions))
        or next(iter(harnesses), None)
        or _unread(suite, reach, classes)
        or _by_groups(suite, reach, outside)
        or (Route.PLAIN, "")
    )


def _classes(suite: Suite, module: Module, test: Function) -> Iterator[tuple[Module, Class]]:
    """The class of a test and its base classes, if the suite defines them."""
    return _lineage(suite, module, test.name.rpartition("::")[0])


def _lineage(suite: Suite, module: Module, name: str) -> Iterator[tuple[Module, Class]]:
    """A class and its base classes, if the suite defines them."""
    left = [(module, name)]
    seen = set()
    while left:
        home, name = left.pop(0)
        cls = home.classes.get(name)
        if cls is None or (home.path, name) in seen:
            continue
        seen.add((home.path, name))
        yield home, cls
        found = (suite.find(base, home) for base in cls.bases)
        left += [place for place in found if place is not None]


def _harnesses(cls: Class) -> Iterator[tuple[Route, str]]:
    """The routes for a class that derives from a test case of torch or DeepSpeed."""
    for base in cls.bases:
        if base.startswith(f"{_HARNESS}.") and (route := _by_torch(base)):
            yield route
    if "_launch_procs" in cls.methods and cls.methods & {"_dist_run", "_dist_init"}:
        yield Route.TESTCASE, "derives from DeepSpeed's DistributedTest, or a copy of it"


def _by_torch(name: str) -> tuple[Route, str] | None:
    """The route for a class of torch, from its bases: a list of names would be incomplete."""
    module, _, attribute = name.rpartition(".")
    names, problem = {attribute}, ""
    if not names & {"MultiProcessTestCase", "MultiProcContinuousTest", "MultiThreadedTestCase"}:
        try:
            names = {
                cls.__name__ for cls in getattr(importlib.import_module(module), attribute).__mro__
            }
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # some imports call sys.exit, or need a variable
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            problem = f"the import of {attribute} raised {textwrap.shorten(said, 60)}"
    for harness in ("MultiProcessTestCase", "MultiProcContinuousTest"):
        if harness in names:
            return Route.TESTCASE, f"derives from torch's {harness}"
    if "MultiThreadedTestCase" in names:
        return Route.PLAIN, ""  # its ranks are threads
    return (Route.UNKNOWN, problem) if problem else None


def _reach(
    suite: Suite, module: Module, test: Function, classes: list[tuple[Module, Class]]
) -> Iterator[tuple[Module, Function]]:
    """The test and all that it reaches: helpers, fixtures, methods of its classes."""
    left: list[tuple[Module, Function]] = [(module, test)]
    left += [
        (m, f)
        for m in (module, *suite.conftests(module))
        for f in m.functions.values()
        if f.is_autouse
    ]
    left += [
        (home, home.functions[name])
        for home, cls in classes
        for set_up in ("setUp", "setup_method", "setUpClass", "setup_class")
        if (name := f"{cls.name}::{set_up}") in home.functions
    ]
    seen, selves = set(), list(classes)
    while left:
        home, function = left.pop()
        if (home.path, function.name) in seen:
            continue
        seen.add((home.path, function.name))
        yield home, function
        left += _next(suite, home, function, selves, _used_of_objects(test))


def _next(
    suite: Suite,
    home: Module,
    function: Function,
    classes: list[tuple[Module, Class]],
    used: set[str],
) -> Iterator[tuple[Module, Function]]:
    """What a function reaches.

    Args:
        suite: the suite.
        home: where the function is.
        function: the function.
        classes: of which an object may be ``self``; those that the function mentions are added.
        used: methods that the test may call of objects that fixtures or the set-up have made.
    """
    for name in function.mentions:
        if method := _METHOD.match(name):
            yield from _methods(classes, {method[1]})
        elif place := suite.find(name, home):
            if found := place[0].functions.get(place[1]):
                yield place[0], found
            made = list(_lineage(suite, *place))
            classes += made
            yield from _methods(made, used | _used_of_objects(function))
    for fixture in function.asks_for:
        for module in (home, *suite.conftests(home)):
            if (found := module.functions.get(fixture)) and "pytest.fixture" in found.marks:
                yield module, found
                break


def _used_of_objects(function: Function) -> set[str]:
    """Names of methods that a function may call of the objects that it makes."""
    names = {name.rpartition(".")[2] for name in function.calls if "." in name}
    # What is called and has no name may be an object.
    if "" in function.calls:
        names.add("__call__")
    return names | {"__init__", "__enter__", "__exit__"}


def _methods(
    classes: Iterable[tuple[Module, Class]], names: set[str]
) -> Iterator[tuple[Module, Function]]:
    for module, cls in classes:
        for name in names:
            if found := module.functions.get(f"{cls.name}::{name}"):
                yield module, found


def _outside(suite: Suite, module: Module) -> Iterator[Function]:
    """Code that runs before any test: the top level of files, and hooks."""
    yield module.functions[""]
    for conftest in suite.conftests(module):
        yield conftest.functions[""]
        yield from (f for f in conftest.functions.values() if f.name.startswith("pytest_"))


def _named(test: Function, module: Module, reach: list[Function]) -> frozenset[str]:
    """The start methods between which helpers choose, if the test or a default names them."""
    defaults = {f"{DEFAULT}{method}": method for method in _METHODS}
    default = frozenset(defaults[name] for name in _all(reach)[0] & defaults.keys())
    named = (test.strings & _METHODS, module.functions[""].strings & _METHODS, default)
    return next(filter(None, named), frozenset())


def _by_processes(
    reach: list[Function], outside: list[Function], named: frozenset[str]
) -> tuple[Route, str] | None:
    """The route for a test that starts processes.

    Args:
        reach: the test and all that it reaches.
        outside: code that runs before it.
        named: start methods that decide where the test's helpers know several; empty for none.
    """
    mentions, strings = _all(reach)
    if mentions & _SUBPROCESS and (launcher := _launcher(strings)):
        return Route.NONE, f"starts {launcher} in a subprocess, and may go on to do so"
    if launcher := next((name for name in mentions if name.startswith(_COMMANDS)), ""):
        return Route.NONE, f"starts a program by {launcher}, which is left as it is"
    if mentions & _ELASTIC and "sys.executable" in mentions:
        return Route.NONE, f"starts a program by {min(mentions & _ELASTIC, key=len)}"
    spawns = mentions & (_SPAWN | (_CONTEXT if "spawn" in strings else set()))
    spawns |= {name for name in mentions if name.endswith("get_context(spawn)")}
    all_mentions, all_strings = _all([*reach, *outside])
    if all_mentions & _START_METHOD and "spawn" in all_strings:
        spawns |= mentions & _PROCESS
    forks = {found[1] for name in mentions if (found := _FORKS.search(name))}
    methods = named or (strings & _METHODS) | forks
    if spawns and (methods <= {"spawn"} or "spawn" in named):
        some = ", with other start methods in some cases" if len(methods) > 1 else ""
        return Route.SPAWN, f"calls {min(spawns, key=len)}{some}"
    if "forkserver" in methods and (spawns or forks or mentions & _CONTEXT):
        return Route.NONE, "starts its processes by forkserver, which is left alone"
    if spawns or forks or mentions & (_PROCESS | _CONTEXT):
        return Route.NONE, "forks its processes, which costs little and is left alone"
    return None


def _unread(
    suite: Suite, reach: list[tuple[Module, Function]], classes: list[tuple[Module, Class]]
) -> tuple[Route, str] | None:
    """The route for a test that may start ranks by code outside of the suite."""
    roots = {name.partition(".")[0] for home, _ in reach for name in home.names.values()}
    if roots.isdisjoint(_LIBRARIES):
        return None
    derives = [(home, base, "derives from") for home, cls in classes for base in cls.bases]
    calls = [(home, name, "calls") for home, f in reach for name in sorted(f.calls | f.marks)]
    for home, name, verb in (*derives, *calls):
        if _is_launcher(name, home) and suite.find(name, home) is None:
            return Route.UNKNOWN, f"{verb} {name.lstrip('.')}, which was not read"
    strings = _all(function for _, function in reach)[1]
    strategies = sorted(filter(_STRATEGY.fullmatch, strings)) if roots & _LIGHTNING else []
    if strategies == ["ddp_spawn"]:
        return Route.SPAWN, "names Lightning's strategy ddp_spawn"
    return (Route.UNKNOWN, f"names Lightning's strategy {strategies[0]}") if strategies else None


def _is_launcher(name: str, home: Module) -> bool:
    """Whether this is an imported function whose name suggests that it starts ranks."""
    root = name.partition(".")[0]
    return (
        root not in _KNOWN
        and any(imported.partition(".")[0] == root for imported in home.names.values())
        and _LAUNCHES.search(name.rpartition(".")[2]) is not None
    )


def _all(functions: Iterable[Function]) -> tuple[frozenset[str], frozenset[str]]:
    """All names that these functions mention, and all their strings."""
    functions = list(functions)
    mentions = frozenset[str]().union(*(function.mentions for function in functions))
    return mentions, frozenset[str]().union(*(function.strings for function in functions))


def _launcher(strings: frozenset[str]) -> str:
    words = {word.rpartition("/")[2] for text in strings for word in text.split()}
    return next((name for name in _LAUNCHERS if name in words), "")


def _by_groups(
    suite: Suite, reach: list[tuple[Module, Function]], outside: list[Function]
) -> tuple[Route, str] | None:
    """The route for a test that uses a process group or a rank, but starts no process."""
    needy = [f for home, f in reach if not _is_guarded(suite, home, f)]
    mentions, strings = _all([*(f for _, f in reach), *outside])
    if GROUP_OF_ONE in mentions:
        return None
    inits = INIT in mentions or (strings & _VARIABLES and "os.environ" in mentions)
    used = _all(needy)[0] & _RANKS
    if inits and used and _all(outside)[0] & (_SPAWN | _PROCESS | _CONTEXT):
        return Route.NONE, "uses processes that are started outside of tests"
    if inits and used:
        return Route.EVERYWHERE, f"calls {min(used, key=len)}, and expects to be a rank"
    called = (f.calls & _RANKS for f in needy)
    if name := min(frozenset[str]().union(*called), key=len, default=""):
        return Route.UNKNOWN, f"calls {name}, and what starts its ranks was not found"
    return None


def _is_guarded(suite: Suite, home: Module, function: Function) -> bool:
    """Whether a function also runs without a group: it asks for one, and neither skips nor makes
    it."""
    if function.mentions & (_SKIPS | _HAVE_GROUP):
        return False
    called = (suite.find(name, home) for name in function.calls)
    asks = [place[0].functions.get(place[1]) for place in called if place is not None]
    asked = (f.mentions for f in asks if f is not None and not f.calls & _RANKS)
    return any(mentions & _GUARDS for mentions in (function.mentions, *asked))
