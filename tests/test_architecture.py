"""Rules of the house that a reader may rely on: which module imports which."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_ddp import extending

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "pytest_ddp": ROOT / "pytest_ddp",
    "ddp_conformance": ROOT / "conformance" / "ddp_conformance",
    "ddp_reference": ROOT / "reference" / "ddp_reference",
}
SHIPPED_SUITES = {*ROOT.glob("pytest_ddp/extensions/*/selftest/suites/*.py")}
"""Tests as a user writes them, which pytest runs in a copy, and nobody imports."""
FILES = sorted(
    {file for folder in PACKAGES.values() for file in folder.rglob("*.py")} - SHIPPED_SUITES
)

_CLEAR_OF_TORCH = {
    "pytest_ddp",
    "pytest_ddp.plugin",
    "pytest_ddp.extensions.machines.plugin",
    "pytest_ddp.session.controller",
    "pytest_ddp.session.supervisor",
    "pytest_ddp.verdict.merge",
    "pytest_ddp.rank.main",
    "pytest_ddp.rank.hooks.fixtures",
    "ddp_conformance",
    "ddp_conformance.plugin",
}
"""Modules that the user's pytest process imports, with all that they import in turn."""

_OF_EVERY_RUN = {
    "pytest_ddp",
    *("pytest_ddp.plugin", "pytest_ddp.hookspecs", "pytest_ddp.extending"),
    *("pytest_ddp.session.neighbours", "pytest_ddp.extensions.machines.engines.options"),
}
"""What suites without ddp tests may import of ours, beside packages, modules of ``settings`` and
``system``, and an extension's ``plugin.py`` and ``options.py``."""


_SIDES = ("pytest_ddp.system", "pytest_ddp.protocol", "pytest_ddp.fixture")
"""What both sides of a channel import."""

_ROOMS = {
    "pytest_ddp": (
        *("system", "protocol", "settings", "outcome", "launch", "rank.operations"),
        *("deadlock", "verdict", "trace", "session"),
        *("rank.exits", "rank.groups", "rank.status", "rank.startup", "rank.cleanup", "rank.hooks"),
        "rank",
        *("extensions", "extensions.compat", "extensions.adopt.ranks", "extensions.adopt"),
        *("extensions.machines.engines", "extensions.machines", "extensions.machines.agent"),
        *("extensions.doctor.selftest", "extensions.doctor"),
        *("extensions.migrate", "extensions.summary", "extensions.comms", "extensions.portable"),
        *("extensions.worlds.ranks", "extensions.worlds"),
        *("extensions.explore.ranks", "extensions.explore"),
    ),
    "ddp_conformance": (
        *("framework", "lockstep", "launched", "launched.process", "launched.start"),
        *("sampling", "metrics", "windows", "writing", "caches", "determinism", "lifecycle"),
        *("model", "callbacks"),
        "frontend",
    ),
}
"""The rooms from the ground up: a room imports of those that stand before it, never of a later
one."""


_SHARED_MODULES = {
    *("__init__", "__main__", "main", "command"),
    *("plugin", "options", "codes"),  # of the core and of each extension
    *("checks", "history", "judge", "mutants", "subjects"),  # of each group of guarantees
}
_EXTENSIONS = "pytest_ddp.extensions"
_WORDS_OF_THE_CORE = {"machines", "summary", "worlds"}
"""Names of extensions that also are words for something else: their options are looked for."""


_MAY_IMPORT = {
    "ddp_conformance": {"pytest_ddp"},
    "ddp_reference": {"pytest_ddp"},  # its crash report reads what the plugin's ranks leave
}


_NEED_THE_PUBLIC = {
    "pytest_ddp.system.stdlib",
    # A copy of it runs where there is nothing of ours.
    "pytest_ddp.extensions.machines.engines.actor",
    "pytest_ddp.rank.startup.shared_preload",  # watches what imports do with it, before any test
    "pytest_ddp.rank.environment",  # sets the os.environ that tests see
    "pytest_ddp.rank.exits.crash_stacks",  # replaces os._exit
    "pytest_ddp.rank.life",  # sets the temporary directory that tests see
    "pytest_ddp.extensions.adopt.ranks.served_surroundings",  # sets os.environ of a process
    "pytest_ddp.system.file_events",  # replaces os.stat
    "pytest_ddp.rank.cleanup.cleanup",  # looks at the os.environ that tests have left
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


def _reach(module: str, *, everywhere: bool) -> set[str]:
    """All modules of ours that importing this one imports."""
    reached, left = set(), [module]
    while left:
        name = left.pop()
        if name not in reached and name in MODULES:
            reached.add(name)
            left += _imports(MODULES[name], everywhere=everywhere)
    return reached


def test_no_cycles() -> None:
    circles = [
        f"{module} and {imported} import each other"
        for module in MODULES
        for imported in _ours(_imports(MODULES[module], everywhere=True)) - {module}
        if module in _reach(imported, everywhere=True)
    ]
    assert not circles


def _room(module: str) -> tuple[str, str]:
    """The package that a module lies in, and its room; a group's mutants are in their group's."""
    package, _, name = module.partition(".")
    folder = name if MODULES[module].name == "__init__.py" else name.rpartition(".")[0]
    return package, folder.removesuffix(".mutants")


def test_imports_point_to_the_ground() -> None:
    upward = []
    for module, file in MODULES.items():
        package, room = _room(module)
        if package not in _ROOMS or not room:
            continue
        rooms = _ROOMS[package]
        later = {(package, name) for name in rooms[rooms.index(room) + 1 :]}
        imported = _ours(_imports(file, everywhere=True))
        upward += [f"{module} imports {name}" for name in imported if _room(name) in later]
    assert not upward


def test_every_folder_is_a_room() -> None:
    for package, rooms in _ROOMS.items():
        folders = {_room(module)[1] for module in MODULES if module.startswith(f"{package}.")}
        assert folders == {"", *rooms}


def test_no_class_and_no_module_has_the_name_of_another() -> None:
    for package in _ROOMS:
        places: dict[str, list[str]] = {}
        for module, file in MODULES.items():
            if module.split(".")[0] == package:
                body = ast.parse(file.read_text()).body
                classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
                for name in classes | {file.stem} - _SHARED_MODULES:
                    places.setdefault(name, []).append(module)
        assert not {name: found for name, found in places.items() if len(found) > 1}


def test_protocol_imports_nothing_of_ours() -> None:
    names = ("host_messages", "rank_status")
    parts = {f"pytest_ddp.protocol.{name}" for name in names}
    assert _ours(_imports(MODULES["pytest_ddp.protocol.messages"], everywhere=True)) == parts
    assert not any(_ours(_imports(MODULES[part], everywhere=True)) for part in parts)


def test_ranks_import_no_controller_code() -> None:
    allowed = ("pytest_ddp.rank.", *_SIDES)
    assert not [
        f"{module} imports {name}"
        for module, file in MODULES.items()
        if module.startswith("pytest_ddp.rank.") or _is_for_ranks(module)
        for name in _ours(_imports(file, everywhere=True)) - {"pytest_ddp"}
        if not name.startswith(allowed) and not _is_for_ranks(name)
    ]


def _is_for_ranks(module: str) -> bool:
    """Whether a module of an extension runs in ranks."""
    return _room(module)[1].endswith(("extensions.compat", ".ranks"))


_STREAM = "pytest_ddp.rank.operations."
_LOOK = {"isinstance", "issubclass", "hasattr", "getattr", "cast"}
_ISSUE_NOTHING = {"get_group_store"}
"""Methods of a process group that others may wrap."""


def test_only_the_stream_intercepts_operations() -> None:
    assert not [
        f"{module}:{line}: {text}"
        for module, file in MODULES.items()
        if module.startswith("pytest_ddp.") and not module.startswith(_STREAM)
        for line, text in _interceptions(ast.parse(file.read_text()))
    ]


def _interceptions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Kernels, and what may set attributes of ``ProcessGroup`` or ``Work``."""
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
        if isinstance(node, ast.Attribute | ast.Name) and text.endswith("Library"):
            yield node.lineno, text
        elif isinstance(node, ast.Assign):
            if any(re.search(r"\b(ProcessGroup|Work)\.\w+$", ast.unparse(t)) for t in node.targets):
                yield node.lineno, text
            elif re.search(r"\b(ProcessGroup|Work)$", ast.unparse(node.value)):
                yield node.lineno, text  # another name for it
        elif isinstance(node, ast.Call) and ast.unparse(node.func) not in _LOOK:
            given = [ast.unparse(argument) for argument in node.args]
            passed = any(re.search(r"\b(ProcessGroup|Work)$", one) for one in given)
            if passed and not any(one.strip("'") in _ISSUE_NOTHING for one in given):
                yield node.lineno, text


def test_interceptions_are_recognised() -> None:
    for text in (
        "torch.library.Library('c10d', 'IMPL')",
        "dist.ProcessGroup.allreduce = mine",
        "setattr(dist.ProcessGroup, name, mine)",
        "self._put(dist.Work, 'wait', mine)",
        "work: Any = dist.Work\nwork_type = dist.Work",
    ):
        assert [*_interceptions(ast.parse(text))], text


def test_controller_imports_no_torch() -> None:
    assert not [
        f"{module} imports {name} through {reached}"
        for module in _CLEAR_OF_TORCH
        for reached in _reach(module, everywhere=False)
        for name in _imports(MODULES[reached], everywhere=False)
        if name.partition(".")[0] in {"torch", "numpy"}
    ]


def test_suites_without_ddp_tests_import_little() -> None:
    plugins = [f"{_EXTENSIONS}.{name}.plugin" for name in extending.names("plugin")]
    assert not [
        f"{plugin} imports {name}"
        for plugin in ("pytest_ddp.plugin", *plugins)
        for name in _reach(plugin, everywhere=False) - _OF_EVERY_RUN
        if MODULES[name].name not in ("__init__.py", "plugin.py", "options.py")
        and _room(name)[1] not in ("settings", "system")
    ]


def test_what_tests_patch_is_taken_as_it_was_before() -> None:
    own = ast.parse(MODULES["pytest_ddp.system.stdlib"].read_text())
    copied = {node.names[0].name for node in ast.walk(own) if isinstance(node, ast.Import)}
    assert not [
        f"{module} imports {name}, and not from pytest_ddp.system.stdlib"
        for module, file in MODULES.items()
        if module.startswith("pytest_ddp.") and module not in _NEED_THE_PUBLIC
        for name in _imports(file, everywhere=True) & copied
    ]


def test_private_names_of_others_are_listed() -> None:
    rows = (ROOT / "docs" / "private-names.md").read_text().splitlines()
    unlisted = []
    for module, file in MODULES.items():
        if module.startswith("pytest_ddp."):
            place = str(file.relative_to(ROOT / "pytest_ddp"))
            of_file = "\n".join(row for row in rows if f"`{place}`" in row)
            unlisted += [(place, name) for name in _private(file) if not _is_listed(name, of_file)]
    assert not unlisted


def _private(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module not in MODULES:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (name := _attribute(node)) and name not in _own_attributes():
            names = [f"it.{name}"]
        yield from filter(_is_private, names)


def _attribute(node: ast.AST) -> str:
    """The name of an attribute, also of one that is named in a string."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return ""
    by_name = ast.unparse(node.func) in ("getattr", "hasattr", "setattr")
    return str(node.args[1].value) if by_name and isinstance(node.args[1], ast.Constant) else ""


@functools.cache
def _own_attributes() -> frozenset[str]:
    """Private names that classes and modules of the plugin give themselves."""
    found = {"_replace", "_asdict", "_fields", "_getframe", "_current_frames"}  # documented
    for module, file in MODULES.items():
        for node in (
            ast.walk(ast.parse(file.read_text())) if module.startswith("pytest_ddp") else ()
        ):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) in ("self", "cls")
            ):
                found.add(node.attr)
    return frozenset(found)


def test_a_private_attribute_of_others_is_found(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(
        "def f(item):\n    return item._planted, getattr(item, '_grafted', item._replace)"
    )
    assert {*_private(file)} == {"it._planted", "it._grafted"}


def _is_private(name: str) -> bool:
    package, *parts = name.split(".")
    typed = name.startswith("_pytest.nodes.")  # for annotations alone
    documented = name in {"sys._getframe", "sys._current_frames"}
    private = package == "_pytest" or any(re.match("_[^_]", part) for part in parts)
    return private and not typed and not documented


def _is_listed(name: str, rows: str) -> bool:
    """Whether a name is listed: by itself if it is private; by the file that uses it if only its
    module is.
    """
    _, _, last = name.rpartition(".")
    return last in rows if last.startswith("_") else bool(rows)


class _Options:
    """Stands in for pytest's parser, and keeps the names that are registered with it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def getgroup(self, *_: object) -> _Options:
        return self

    def addoption(self, *names: str, **_: object) -> None:
        self.names += names

    def addini(self, name: str, *_: object, **__: object) -> None:
        self.names.append(name)


def test_core_knows_no_extension() -> None:
    names = {module.split(".")[2] for module in MODULES if module.startswith(f"{_EXTENSIONS}.")}
    options = _Options()
    for name in extending.names("plugin"):
        plugin = extending.load(name, "plugin")
        getattr(plugin, "pytest_addoption", lambda _: None)(options)
    assert {"adopt", "compat", "doctor", "migrate", "summary"} <= names
    assert "--ddp-adopt" in options.names
    words = [*(names - _WORDS_OF_THE_CORE), *options.names, *(rf"extensions\.{n}" for n in names)]
    known = re.compile(rf"(?<![\w-])({'|'.join(words)})(?![\w-])")
    core = [
        file
        for module, file in MODULES.items()
        if module.startswith("pytest_ddp") and not module.startswith(_EXTENSIONS)
    ]
    assert not [
        f"{file.relative_to(ROOT)}:{number} knows {found[1]}"
        for file in core
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (found := known.search(line))
    ]


def test_core_imports_no_extension() -> None:
    assert not [
        f"{module} imports {name}"
        for module, file in MODULES.items()
        if module.startswith("pytest_ddp") and not module.startswith(_EXTENSIONS)
        for name in _imports(file, everywhere=True)
        if name.startswith(_EXTENSIONS)
    ]


def test_packages_depend_one_way() -> None:
    backward = []
    for module, file in MODULES.items():
        packages = {name.partition(".")[0] for name in _ours(_imports(file, everywhere=True))}
        own = module.partition(".")[0]
        others = packages - {own, *_MAY_IMPORT.get(own, set())}
        backward += [f"{module} imports {name}" for name in others]
    assert not backward


def test_nothing_sleeps_or_is_left_to_do() -> None:
    pattern = re.compile(r"TODO|FIXME|time\.sleep")
    assert not [file for file in FILES if pattern.search(file.read_text())]
