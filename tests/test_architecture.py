"""Rules of the house that a reader may rely on: who imports whom, and how long things are."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "pytest_ddp": ROOT / "pytest_ddp",
    "ddp_conformance": ROOT / "conformance" / "ddp_conformance",
    "ddp_reference": ROOT / "reference" / "ddp_reference",
}
SHIPPED_SUITES = {*(ROOT / "pytest_ddp" / "battery" / "suites").glob("*.py")}
"""Tests as a user writes them, which pytest runs in a copy, and nobody imports."""
FILES = sorted(
    {file for folder in PACKAGES.values() for file in folder.rglob("*.py")} - SHIPPED_SUITES
)
_TESTED = (ROOT / "tests", ROOT / "conformance")
TESTS = sorted(
    ({file for folder in _TESTED for file in folder.rglob("*.py")} | SHIPPED_SUITES) - {*FILES}
)

_CLEAR_OF_TORCH = {
    "pytest_ddp",
    "pytest_ddp.plugin",
    "pytest_ddp.controller.controller",
    "pytest_ddp.attempt.supervisor",
    "pytest_ddp.verdict.merge",
    "pytest_ddp.rank.main",
    "pytest_ddp.rank.adapt.fixtures",
}
"""Modules that the user's pytest process imports, with all that they import in turn."""


_SIDES = ("pytest_ddp.system", "pytest_ddp.wire", "pytest_ddp.neighbours", "pytest_ddp.fixture")
"""What both sides of a channel import."""

_ROOMS = {
    "pytest_ddp": (
        *("system", "wire", "neighbours", "asked", "evidence", "launch"),
        *("machines.engines", "machines", "agent"),
        *("proof", "verdict", "trace", "attempt", "controller", "adopt", "migrate", "summary"),
        *("rank.exits", "rank.groups", "rank.watch", "rank.birth", "rank.care", "rank.adapt"),
        *("rank.adopted", "rank.alike", "rank.served"),
        *("rank", "battery", "doctor"),
    ),
    "ddp_conformance": (
        *("frame", "stage", "launched", "launched.process", "launched.start"),
        *("sampling", "metrics", "windows", "writing", "caches", "determinism", "lifecycle"),
        *("model", "callbacks"),
        "front",
    ),
}
"""From the ground up: a room imports of those that stand before it, never of a later one."""


_MAY_IMPORT = {
    "ddp_conformance": {"pytest_ddp", "ddp_reference"},
    "ddp_reference": {"pytest_ddp"},  # its crash report reads what the plugin's ranks leave
}


_NEED_THE_PUBLIC = {
    "pytest_ddp.system.own",
    "pytest_ddp.machines.engines.actor",  # a copy of it runs where there is nothing of ours
    "pytest_ddp.rank.birth.sharing",  # watches what imports do with it, before any test
    "pytest_ddp.rank.environment",  # sets the os.environ that tests see
    "pytest_ddp.rank.exits.faults",  # replaces os._exit
    "pytest_ddp.rank.life",  # sets the temporary directory that tests see
    "pytest_ddp.rank.served.surroundings",  # sets the os.environ that a served process sees
    "pytest_ddp.rank.care.surroundings",  # looks at the os.environ that tests have left
}
"""Modules that use the standard library as tests see it, patches included."""


def _module(file: Path) -> str:
    for name, folder in PACKAGES.items():
        if file.is_relative_to(folder):
            parts = [name, *file.relative_to(folder).with_suffix("").parts]
            return ".".join(part for part in parts if part != "__init__")
    raise AssertionError(file)


MODULES = {_module(file): file for file in FILES}


@functools.cache
def _imports(file: Path, *, everywhere: bool) -> frozenset[str]:
    """Names of imported modules; ``everywhere`` counts imports in functions as well."""
    tree = ast.parse(file.read_text())
    found = set()
    for node in ast.walk(tree) if everywhere else _top_level(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            # Importing a submodule asks nothing of its package.
            found |= parts if parts <= MODULES.keys() else {node.module}
    return frozenset(found)


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def _ours(imports: frozenset[str]) -> set[str]:
    return {name for name in imports if name in MODULES}


def _reach(module: str) -> set[str]:
    """All modules of ours that importing this one imports."""
    reached, left = set(), [module]
    while left:
        name = left.pop()
        if name not in reached and name in MODULES:
            reached.add(name)
            left += _imports(MODULES[name], everywhere=False)
    return reached


def test_no_cycles() -> None:
    for module in MODULES:
        for imported in _ours(_imports(MODULES[module], everywhere=False)) - {module}:
            assert module not in _reach(imported), f"{module} and {imported} import each other"


def _room(module: str) -> tuple[str, str]:
    """The package that a module lies in, and its room; a group's mutants are in their group's."""
    package, _, name = module.partition(".")
    folder = name if MODULES[module].name == "__init__.py" else name.rpartition(".")[0]
    return package, folder.removesuffix(".mutants")


@pytest.mark.parametrize("module", [m for m in MODULES if _room(m)[0] in _ROOMS and _room(m)[1]])
def test_imports_point_to_the_ground(module: str) -> None:
    package, room = _room(module)
    rooms = _ROOMS[package]
    above = {(package, later) for later in rooms[rooms.index(room) + 1 :]}
    others = {name: _room(name) for name in _ours(_imports(MODULES[module], everywhere=True))}
    assert not [name for name, lies_in in others.items() if lies_in in above]


@pytest.mark.parametrize("package", _ROOMS)
def test_every_folder_is_a_room(package: str) -> None:
    folders = {_room(module)[1] for module in MODULES if module.startswith(f"{package}.")}
    assert folders == {"", *_ROOMS[package]}


@pytest.mark.parametrize("top", [*map(PACKAGES.__getitem__, _ROOMS), ROOT / "tests"], ids=str)
def test_rooms_are_small(top: Path) -> None:
    for folder in {file.parent for file in top.rglob("*.py")}:
        files = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(files) <= 14, folder


def test_protocol_imports_nothing_of_ours() -> None:
    names = ("hosting", "machines", "survey", "debugging", "serving")
    parts = {f"pytest_ddp.wire.{name}" for name in names}
    assert _ours(_imports(MODULES["pytest_ddp.wire.protocol"], everywhere=True)) == parts
    assert not any(_ours(_imports(MODULES[part], everywhere=True)) for part in parts)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("pytest_ddp.rank.")])
def test_ranks_import_no_controller_code(module: str) -> None:
    others = _ours(_imports(MODULES[module], everywhere=True)) - {"pytest_ddp"}
    assert all(name.startswith(("pytest_ddp.rank.", *_SIDES)) for name in others)


@pytest.mark.parametrize("module", sorted(_CLEAR_OF_TORCH))
def test_controller_imports_no_torch(module: str) -> None:
    for reached in _reach(module):
        imported = {name.partition(".")[0] for name in _imports(MODULES[reached], everywhere=False)}
        assert not imported & {"torch", "numpy"}, f"{module} imports torch through {reached}"


def test_what_tests_patch_is_taken_as_it_was_before() -> None:
    own = ast.parse(MODULES["pytest_ddp.system.own"].read_text())
    copied = {node.names[0].name for node in ast.walk(own) if isinstance(node, ast.Import)}
    for module, file in MODULES.items():
        if module.startswith("pytest_ddp.") and module not in _NEED_THE_PUBLIC:
            public = _imports(file, everywhere=True) & copied
            assert not public, f"{module} imports {public}, and not from pytest_ddp.system.own"


def test_private_names_of_others_are_listed() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for module, file in MODULES.items():
        private = [name for name in _imports(file, everywhere=True) if _is_private(name)]
        if module.startswith("pytest_ddp.") and private:
            place = str(file.relative_to(ROOT / "pytest_ddp"))
            assert f"`{place}`" in page, f"{module} imports {private}"


def _is_private(name: str) -> bool:
    package, *parts = name.split(".")
    typed = name == "_pytest.nodes.Node"  # for annotations alone
    return not typed and (package == "_pytest" or any(re.match("_[^_]", part) for part in parts))


def test_packages_depend_one_way() -> None:
    for module, file in MODULES.items():
        packages = {name.partition(".")[0] for name in _ours(_imports(file, everywhere=True))}
        own = module.partition(".")[0]
        allowed = _MAY_IMPORT.get(own, set())
        assert packages <= {own, *allowed}, f"{module} imports {packages - {own}}"


@pytest.mark.parametrize("file", FILES + TESTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_sizes(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 400
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"


def test_nothing_sleeps_or_is_left_to_do() -> None:
    for file in FILES:
        assert not re.search(r"TODO|FIXME|time\.sleep", file.read_text()), file
