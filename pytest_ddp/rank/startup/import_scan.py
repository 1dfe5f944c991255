"""The installed modules that test files import at module level, directly or through the user's
code.

This is read from their text: running them would import the user's code before any rank is known.
What no text shows, such as an import by a computed name, was observed in the pytest process. What
is missed here is imported by each rank, which is slower and just as right.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_ddp.protocol.host_messages import ImportedModules
from pytest_ddp.rank.startup.ownership import spec_of, top_of

_BY_NAME = ("import_module", "importorskip")
"""Functions that import the module named by their first argument."""


class ScannedImport(NamedTuple):
    """``import module``, or ``from module import names``."""

    module: str
    names: tuple[str, ...] = ()


class ImportScan:
    """Follows imports from files through the user's own modules to installed ones."""

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        """
        Args:
            is_own: whether a top-level module is the user's own.
        """
        self._is_own = is_own
        self._seen: set[Path] = set()
        self._found: dict[ScannedImport, None] = {}

    def by(self, files: Iterable[Path]) -> list[ScannedImport]:
        """The imports of these files, in the order of their statements."""
        for file in files:
            self._read(file)
        return list(self._found)

    def came(self, together: Iterable[ImportedModules]) -> list[ScannedImport]:
        """All imports, with those that the pytest process did for a file that was read."""
        for each in together:
            own = [name for name in each.modules if self._is_own(top_of(name))]
            if Path(each.file) in self._seen or any(map(self._has_read, own)):
                rest = (name for name in each.modules if self._is_installed(top_of(name)))
                self._found.update(dict.fromkeys(map(ScannedImport, rest)))
        return list(self._found)

    def _is_installed(self, top: str) -> bool:
        # Unlike a test file, an installed module is found on the path.
        return not self._is_own(top) and spec_of(top) is not None

    def _has_read(self, own: str) -> bool:
        name = own.rpartition(".")[2]
        files = _files_of(ScannedImport(own))
        # Not its parent packages' files, which are read for other modules as well.
        return any(file in self._seen for file in files if name in (file.stem, file.parent.name))

    @property
    def files(self) -> frozenset[Path]:
        """All files that were read."""
        return frozenset(self._seen)

    def _read(self, file: Path) -> None:
        if file in self._seen:
            return
        self._seen.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return  # the rank reports it
        for wanted in _imports(tree.body, file):
            self._follow(wanted)

    def _follow(self, wanted: ScannedImport | Path) -> None:
        if isinstance(wanted, Path):
            self._read(wanted)
        elif self._is_own(top_of(wanted.module)):
            for path in _files_of(wanted):
                self._read(path)
        else:
            self._found.setdefault(wanted)


def _files_of(wanted: ScannedImport) -> Iterator[Path]:
    """The files that an import of the user's own modules runs."""
    top, *parts = wanted.module.split(".")
    spec = spec_of(top)
    if spec is None:
        return
    if spec.origin is not None and spec.origin.endswith(".py"):
        yield Path(spec.origin)
    # Not by finders, which would import the parent packages of a nested module.
    for folder in spec.submodule_search_locations or ():
        yield from _below(Path(folder), parts, wanted.names)


def _below(folder: Path, parts: Iterable[str], names: Iterable[str]) -> Iterator[Path]:
    """The files that ``from .parts import names`` runs in a module of this folder."""
    for part in parts:
        yield from _submodule(folder, part)
        folder /= part
    for name in names:
        yield from _submodule(folder, name)


def _submodule(folder: Path, name: str) -> Iterator[Path]:
    for path in (folder / f"{name}.py", folder / name / "__init__.py"):
        if path.is_file():
            yield path


def _imports(body: Iterable[ast.stmt], file: Path) -> Iterator[ScannedImport | Path]:
    for statement in _run_at_import(body):
        match statement:
            case ast.Import(names):
                yield from (ScannedImport(alias.name) for alias in names)
            case ast.ImportFrom(module, names, level):
                named = tuple(alias.name for alias in names)
                if not level:
                    yield ScannedImport(module or "", named)
                else:
                    yield from _relative(file, level, module, named)
            case ast.Expr(ast.Call() as call) | ast.Assign(value=ast.Call() as call):
                yield from _by_name(call)
            case ast.Assign([ast.Name("pytest_plugins")], value):
                yield from (ScannedImport(text) for text in _texts(value))
            case _:
                pass


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside of functions, in blocks and classes too, but not for type checkers."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and _is_for_type_checkers(statement.test):
            yield from _run_at_import(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _run_at_import(getattr(statement, block, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _run_at_import(handler.body)


def _is_for_type_checkers(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _relative(file: Path, level: int, module: str | None, names: tuple[str, ...]) -> Iterator[Path]:
    """The files that ``from ..module import names`` runs."""
    if level > len(file.parents):
        return
    yield from _below(file.parents[level - 1], module.split(".") if module else (), names)


def _by_name(call: ast.Call) -> Iterator[ScannedImport]:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in _BY_NAME and call.args:
        yield from (ScannedImport(text) for text in _texts(call.args[0]))


def _texts(value: ast.expr) -> Iterator[str]:
    elements = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    for element in elements:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value
