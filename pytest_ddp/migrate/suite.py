"""The functions and classes of a suite's files, and what each of them mentions."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

TEST_FILES = ("test_*.py", "*_test.py")
"""pytest's own default."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, or all that stands outside of them."""

    name: str
    """As in a node id, ``TestSum::test_all``; empty for what stands outside."""
    line: int
    mentions: frozenset[str]
    """Qualified names: ``torch.multiprocessing.spawn``, ``.helpers.run``, ``_worker``,
    ``self.set_up``."""
    strings: frozenset[str]
    asks_for: tuple[str, ...]
    """Fixtures, by parameter or mark."""
    marks: frozenset[str]
    """Qualified names of decorators."""
    is_autouse: bool = False


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the outermost level."""

    name: str
    bases: tuple[str, ...]
    marks: frozenset[str]
    methods: frozenset[str]


@dataclass(frozen=True)
class Module:
    """A file."""

    path: Path
    functions: dict[str, Function]
    classes: dict[str, Class]
    imports: frozenset[str]
    is_asked_for: bool
    """Whether its tests are to be told of, or it only helps others."""

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Its dotted name, with all folders above it."""
        parts = self.path.with_suffix("").parts
        return parts[:-1] if parts[-1] == "__init__" else parts

    @property
    def tests(self) -> Iterator[Function]:
        """What pytest would take for tests, whose classes may derive from unittest's."""
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
            except (SyntaxError, ValueError, RecursionError) as error:
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

    def find(self, name: str, of: Module) -> tuple[Module, str] | None:
        """Where a qualified name that ``of`` mentions is defined, if it is in the suite."""
        own = name.replace(".", "::")
        if own in of.functions or own in of.classes:
            return of, own
        for module, rest in self._modules_of(name, of):
            if rest in module.functions or rest in module.classes:
                return module, rest
        return None

    def _modules_of(self, name: str, of: Module) -> Iterator[tuple[Module, str]]:
        relative = name.lstrip(".")
        dots, parts = len(name) - len(relative), relative.split(".")
        for end in range(len(parts) - 1, 0, -1):
            wanted = tuple(parts[:end])
            rest = "::".join(parts[end:])
            if dots:
                own = of.path.parts[: len(of.path.parts) - dots]
                yield from ((m, rest) for m in self.modules if m.parts == own + wanted)
            else:
                yield from ((m, rest) for m in self._nearest(wanted, of))

    def _nearest(self, tail: tuple[str, ...], to: Module) -> list[Module]:
        """Modules whose name ends so; ``sys.path`` is not known before a run."""
        alike = self._by_last_part.get(tail[-1], ())
        found = [module for module in alike if module.parts[-len(tail) :] == tail]
        return sorted(found, key=lambda module: -_shared(module.path, to.path))

    def conftests(self, of: Module) -> Iterator[Module]:
        """Those that count for a file, the nearest first."""
        folders = {folder: depth for depth, folder in enumerate(of.path.parents)}
        found = [m for m in self.modules if m.path.name == "conftest.py"]
        near = [module for module in found if module.path.parent in folders]
        return iter(sorted(near, key=lambda module: folders[module.path.parent]))


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
    """Files beside or above that its imports could mean; what is installed is none of a suite."""
    for name in module.imports:
        relative = name.lstrip(".")
        parts = relative.split(".")
        dots = len(name) - len(relative)
        folders = module.path.parents
        for folder in folders[dots - 1 : dots] if dots else folders:
            if (folder / parts[0]).is_dir() or (folder / f"{parts[0]}.py").is_file():
                files = (folder.joinpath(*parts[:n]) for n in range(1, len(parts) + 1))
                found = [
                    f for file in files for f in (file.with_suffix(".py"), file / "__init__.py")
                ]
                yield from filter(Path.is_file, found)


def _is_test_file(path: Path) -> bool:
    """Whether pytest would collect it without being told to."""
    return any(path.match(pattern) for pattern in TEST_FILES)


def _read(file: Path, *, is_asked_for: bool) -> Module:
    tree = ast.parse(file.read_bytes(), file.name)
    imports = dict(_imports(tree))
    reader = _Reader(imports)
    reader.visit(tree)
    functions = {name: notes.function(name) for name, notes in reader.notes.items()}
    return Module(file, functions, reader.classes, frozenset(imports.values()), is_asked_for)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What imported names stand for; a name means one thing in all of a file."""
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
                whole = f"{node.module}.{alias.name}" if node.module else alias.name
                yield alias.asname or alias.name, dots + whole


@dataclass
class _Notes:
    """What is being gathered of one function."""

    line: int
    mentions: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    asks_for: list[str] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)
    is_autouse: bool = False

    def function(self, name: str) -> Function:
        return Function(
            name,
            self.line,
            frozenset(self.mentions),
            frozenset(self.strings),
            tuple(self.asks_for),
            frozenset(self.marks),
            self.is_autouse,
        )


class _Reader(ast.NodeVisitor):
    """Goes through a file; what is nested in a function counts as that function's."""

    def __init__(self, imports: dict[str, str]) -> None:
        self._imports = imports
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
        self.classes[node.name] = Class(node.name, bases, frozenset(marks), frozenset(methods))
        self._cls = node.name
        self.generic_visit(node)
        self._cls = ""

    def visit_Name(self, node: ast.Name) -> None:
        self._now.mentions.add(self._qualified(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._now.mentions.add(self._qualified(node))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._now.strings.add(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._qualified(node.func)
        sizes = [keyword.value for keyword in node.keywords if keyword.arg == "world_size"]
        if name == INIT and any(isinstance(s, ast.Constant) and s.value == 1 for s in sizes):
            self._now.mentions.add(GROUP_OF_ONE)
        if name == "pytest.mark.usefixtures":
            self._now.asks_for += [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
        if name == "pytest.fixture":
            self._now.is_autouse |= any(keyword.arg == "autouse" for keyword in node.keywords)
        self.generic_visit(node)

    def _marks(self, decorators: list[ast.expr]) -> set[str]:
        return {self._qualified(d.func if isinstance(d, ast.Call) else d) for d in decorators}

    def _qualified(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self._imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._qualified(node.value)}.{node.attr}"
        return ""


INIT = "torch.distributed.init_process_group"
GROUP_OF_ONE = f"{INIT}(world_size=1)"
"""A mention of what is no distributed test."""
