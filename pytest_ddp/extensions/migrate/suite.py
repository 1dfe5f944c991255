"""The functions and classes of a suite's files, and the names that each of them mentions."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

TEST_FILES = ("test_*.py", "*_test.py")
"""pytest's own patterns for the names of test files."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, or all code outside of them."""

    name: str
    """The name as in a node id, ``TestSum::test_all``; empty for code outside of functions."""
    line: int
    mentions: frozenset[str]
    """Qualified names: ``torch.multiprocessing.spawn``, ``.helpers.run``, ``_worker``,
    ``self.set_up``."""
    calls: frozenset[str]
    """The mentioned names that are called."""
    strings: frozenset[str]
    """String literals, without docstrings."""
    asks_for: tuple[str, ...]
    """Fixtures, by parameter or mark."""
    marks: frozenset[str]
    """Qualified names of decorators."""
    sizes: frozenset[int] = frozenset()
    """World sizes that marks state: ``pytest.mark.world_size(2)``."""
    is_autouse: bool = False


@dataclass(frozen=True, slots=True)
class Class:
    """A top-level class."""

    name: str
    bases: tuple[str, ...]
    marks: frozenset[str]
    methods: frozenset[str]
    sizes: frozenset[int] = frozenset()
    """World sizes that the class's marks state."""


@dataclass(frozen=True)
class Module:
    """A file."""

    path: Path
    functions: dict[str, Function]
    classes: dict[str, Class]
    names: dict[str, str]
    """The qualified names of imported names and plain aliases; ``.helpers.*`` maps to itself."""
    is_asked_for: bool
    """Whether the module's tests are reported, or other modules only import from it."""

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The module's dotted name, with all folders above it."""
        parts = self.path.with_suffix("").parts
        return parts[:-1] if parts[-1] == "__init__" else parts

    @cached_property
    def stars(self) -> tuple[str, ...]:
        """``.helpers.`` for each module from which it imports ``*``."""
        return tuple(name[:-1] for name in self.names if name.endswith(".*"))

    @property
    def tests(self) -> Iterator[Function]:
        """Functions that pytest collects as tests; their classes may derive from unittest's."""
        for function in self.functions.values():
            cls, _, name = function.name.rpartition("::")
            if name.startswith("test") and (not cls or cls in self.classes):
                yield function


@dataclass(frozen=True)
class Suite:
    """All files that were read."""

    modules: tuple[Module, ...]
    broken: dict[Path, str] = field(default_factory=dict)
    """Files that could not be read, and why."""
    _places: dict[tuple[Path, str], tuple[Module, str] | None] = field(default_factory=dict)
    """Cache of :meth:`find`."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Suite:
        """Read these files and folders, the conftests above and all helpers that are imported."""
        named = {path.absolute() for path in paths}
        found = {file for path in named for file in _files(path)}
        asked_for = {file for file in found if file in named or _is_test_file(file)}
        modules: list[Module] = []
        broken: dict[Path, str] = {}
        left, seen = sorted({*found, *_conftests_above(found)}), set[Path]()
        while left:
            file = left.pop(0)
            if file in seen:
                continue
            seen.add(file)
            try:
                modules.append(_read(file, is_asked_for=file in asked_for))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
                broken[file] = str(error)
            else:
                left += _imported(modules[-1])
        return cls(tuple(modules), broken)

    @cached_property
    def _by_last_part(self) -> dict[str, list[Module]]:
        modules: dict[str, list[Module]] = {}
        for module in self.modules:
            modules.setdefault(module.parts[-1], []).append(module)
        return modules

    def find(self, name: str, module: Module) -> tuple[Module, str] | None:
        """The module that defines what ``module`` mentions, and its name there; None if none does.

        A package may import the name from another module, which imports it from a third.
        """
        key = module.path, name
        if key not in self._places:
            self._places[key] = self._find(name, module, frozenset())
        return self._places[key]

    def _find(
        self, name: str, of: Module, seen: frozenset[tuple[Path, str]]
    ) -> tuple[Module, str] | None:
        own = name.replace(".", "::")
        if own in of.functions or own in of.classes:
            return of, own
        stars = of.stars if "." not in name else ()
        for module, rest in (
            place
            for whole in (name, *(f"{star}{name}" for star in stars))
            for place in self._modules_of(whole, of)
        ):
            # ``from .x import x`` would recurse for ever if x.py has no x.
            if (module.path, rest) in seen or any(r.count(".") < rest.count(".") for _, r in seen):
                continue
            first, dot, others = rest.partition(".")
            meant = module.names.get(first, first) + dot + others
            for one in dict.fromkeys((rest, meant)):
                if found := self._find(one, module, seen | {(module.path, rest)}):
                    return found
        return None

    def _modules_of(self, name: str, module: Module) -> Iterator[tuple[Module, str]]:
        """The modules that a name may begin with, and the rest of the name."""
        relative = name.lstrip(".")
        dots, parts = len(name) - len(relative), relative.split(".")
        for end in range(len(parts) - 1, -1 if dots else 0, -1):
            prefix = tuple(parts[:end])
            rest = ".".join(parts[end:])
            if dots:
                own = module.path.parts[: len(module.path.parts) - dots]
                yield from ((m, rest) for m in self.modules if m.parts == own + prefix)
            else:
                yield from ((m, rest) for m in self._nearest(prefix, module))

    def _nearest(self, tail: tuple[str, ...], to: Module) -> list[Module]:
        """Modules whose name ends with ``tail``, as ``sys.path`` is not known before a run."""
        same_last = self._by_last_part.get(tail[-1], ())
        found = [module for module in same_last if module.parts[-len(tail) :] == tail]
        return sorted(found, key=lambda module: -_shared(module.path, to.path))

    def conftests(self, module: Module) -> Iterator[Module]:
        """The conftests that apply to a file, the nearest first."""
        found = {m.path.parent: m for m in self._by_last_part.get("conftest", ())}
        return (found[folder] for folder in module.path.parents if folder in found)


def _shared(one: Path, other: Path) -> int:
    return sum(a == b for a, b in zip(one.parts, other.parts, strict=False))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*.py"):
        inside = file.relative_to(path).parts
        if not any(
            part.startswith(".") or part in ("venv", "build", "node_modules") for part in inside
        ):
            yield file


def _conftests_above(files: Collection[Path]) -> Iterator[Path]:
    for folder in {folder for file in files for folder in file.parents}:
        if (conftest := folder / "conftest.py").is_file():
            yield conftest


def _imported(module: Module) -> Iterator[Path]:
    """Files of the suite to which a module's imports may refer."""
    for name in module.names.values():
        yield from _files_of(name, module.path)


def _files_of(name: str, path: Path) -> Iterator[Path]:
    """Files beside or above a file; installed packages are not part of the suite."""
    relative = name.lstrip(".")
    parts = relative.split(".")
    dots = len(name) - len(relative)
    above = path.parents
    folders = above[dots - 1 : dots] if dots else [*above, *(folder / "src" for folder in above)]
    for folder in folders:
        if (folder / parts[0]).is_dir() or (folder / f"{parts[0]}.py").is_file():
            files = (folder.joinpath(*parts[:n]) for n in range(1, len(parts) + 1))
            found = [f for file in files for f in (file.with_suffix(".py"), file / "__init__.py")]
            yield from filter(Path.is_file, found)


def _is_test_file(path: Path) -> bool:
    """Whether pytest collects a file by default."""
    return any(path.match(pattern) for pattern in TEST_FILES)


def _read(file: Path, *, is_asked_for: bool) -> Module:
    tree = ast.parse(file.read_bytes(), file.name)
    names = _names(file, tree)
    reader = _Reader(names)
    reader.visit(tree)
    functions = {name: notes.function(name) for name, notes in reader.notes.items()}
    return Module(file, functions, reader.classes, names, is_asked_for)


def _names(
    file: Path, tree: ast.Module, importing: frozenset[Path] = frozenset()
) -> dict[str, str]:
    """The qualified names of imported names and aliases, including those imported by ``*``."""
    own = dict(_imports(tree))
    names: dict[str, str] = {}
    for star in [name for name in own if name.endswith(".*")]:
        for other in {*_files_of(star, file)} - importing - {file}:
            with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
                tree_of = ast.parse(other.read_bytes())
                brought = _names(other, tree_of, importing | {file})
                # Relative names would refer to another module here.
                names |= {n: to for n, to in brought.items() if not to.startswith(".")}
    names |= own
    for name, value in _aliases(tree):
        names[name] = _qualified(value, names)
    return names


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Imported names with their qualified names, regarded as valid in the whole file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    (alias.asname, alias.name)
                    if alias.asname
                    else (alias.name.partition(".")[0],) * 2
                )
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            for alias in node.names:
                whole = dots + (f"{node.module}.{alias.name}" if node.module else alias.name)
                yield alias.asname or (whole if alias.name == "*" else alias.name), whole


def _aliases(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """``run = helpers.run``, ``run = partial(helpers.run, 2)``, ``mp = get_context("spawn")``."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() | ast.Attribute() as to):
                yield name, to
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func) as call):
                called = ast.unparse(func).rpartition(".")[2]
                if called == "partial" and call.args:
                    yield name, call.args[0]
                elif called == "get_context":
                    yield name, call


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _qualified(node: ast.expr, names: dict[str, str]) -> str:
    """The qualified name of a node; empty if it is no name."""
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=value, attr=attribute):
            return f"{_qualified(value, names)}.{attribute}"
        case ast.Call(func=func, args=[ast.Constant(value=str(method))]):
            name = _qualified(func, names)
            return f"{name}({method})" if name.endswith("get_context") else ""
    return ""


@dataclass
class _Notes:
    """The facts about one function, while it is read."""

    line: int
    mentions: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    asks_for: list[str] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    is_autouse: bool = False

    def function(self, name: str) -> Function:
        return Function(
            name,
            self.line,
            frozenset(self.mentions),
            frozenset(self.calls),
            frozenset(self.strings),
            tuple(self.asks_for),
            frozenset(self.marks),
            frozenset(self.sizes),
            self.is_autouse,
        )


class _Reader(ast.NodeVisitor):
    """Visits a file; code nested in a function counts as that function's."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names
        self._now = _Notes(1)
        self.notes = {"": self._now}
        self._cls = ""
        self.classes: dict[str, Class] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside = self.notes[""]
        if self._now is not outside:
            self.generic_visit(node)
            return
        name = f"{self._cls}::{node.name}" if self._cls else node.name
        self._now = self.notes[name] = _Notes(node.lineno)
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self._now.asks_for += [a.arg for a in arguments if a.arg not in ("self", "cls")]
        self._now.marks |= self._marks(node.decorator_list)
        self._now.sizes |= self._sizes(node.decorator_list)
        defaults = (*node.args.defaults, *node.args.kw_defaults)
        for default in defaults:
            if isinstance(default, ast.Constant) and isinstance(default.value, str):
                self._now.mentions.add(DEFAULT + default.value)
        self.generic_visit(node)
        self._now = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if self._cls or self._now is not self.notes[""]:
            self.generic_visit(node)
            return
        bases = tuple(name for base in node.bases if (name := self._qualified(base)))
        methods = {s.name for s in node.body if isinstance(s, ast.FunctionDef)}
        marks = self._marks(node.decorator_list)
        sizes = frozenset(self._sizes(node.decorator_list))
        self.classes[node.name] = Class(
            node.name, bases, frozenset(marks), frozenset(methods), sizes
        )
        self._cls = node.name
        self.generic_visit(node)
        self._cls = ""

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._now is self.notes[""] and not self._cls and _is_pytestmark(node.targets):
            self._now.sizes |= self._sizes([node.value])
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        called = {self._qualified(n.func) for n in _nodes(node.body) if isinstance(n, ast.Call)}
        if node.handlers and called & _ASKED_FOR:
            self._now.mentions.add(IS_INITIALIZED)  # asks for the group by trying
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._now.mentions.add(self._qualified(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._now.mentions.add(self._qualified(node))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring is no string of the code
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._now.strings.add(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._qualified(node.func)
        self._now.calls.add(name)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        size, backend = given.get("world_size"), (*node.args, given.get("backend"))[0]
        if name == INIT and (_is(size, 1) or _is(backend, "fake")):
            self._now.mentions.add(GROUP_OF_ONE)
        if name == "pytest.mark.usefixtures":
            self._now.asks_for += [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
        if name == "pytest.fixture":
            self._now.is_autouse |= any(keyword.arg == "autouse" for keyword in node.keywords)
        self.generic_visit(node)

    def _marks(self, decorators: list[ast.expr]) -> set[str]:
        return {self._qualified(d.func if isinstance(d, ast.Call) else d) for d in decorators}

    def _sizes(self, marks: Iterable[ast.expr]) -> set[int]:
        """World sizes in marks, also in those of ``pytest.param``."""
        calls = [node for node in _nodes(marks) if isinstance(node, ast.Call)]
        given: list[ast.expr] = []
        for call in calls:
            name = self._qualified(call.func)
            if name.startswith("pytest.mark."):
                given += call.args[:1] if name.endswith(".world_size") else []
                given += [keyword.value for keyword in call.keywords if keyword.arg in _SIZES]
        values = [node.value for node in given if isinstance(node, ast.Constant)]
        return {value for value in values if isinstance(value, int) and value > 0}

    def _qualified(self, node: ast.expr) -> str:
        return _qualified(node, self._names)


def _nodes(roots: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return (node for root in roots for node in ast.walk(root))


def _is_pytestmark(targets: list[ast.expr]) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets)


INIT = "torch.distributed.init_process_group"
IS_INITIALIZED = "torch.distributed.is_initialized"
DEFAULT = "default="
"""A mark before each default of a parameter that is a string, in the mentions of its function."""
_ASKED_FOR = {f"torch.distributed.{name}" for name in ("get_rank", "get_world_size")}
"""Functions that raise without a process group."""
_SIZES = {"world_size", "nprocs", "nproc", "num_processes", "nproc_per_node"}
"""Arguments of marks by which suites state a world size."""
GROUP_OF_ONE = f"{INIT}(world_size=1)"
"""What a test mentions that creates a group of one rank or a fake one: it needs no ranks."""
