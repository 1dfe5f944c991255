"""Programs with a place before each statement, where a rank can be delayed."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delay:
    """A sleep of one rank before a line, each time (``nth`` is 0) or one time."""

    rank: int
    line: int
    seconds: float
    nth: int = 0
    call: str = ""
    """A function of the standard library, such as ``os.unlink``, in the place of a line."""


def line_of(source: str, text: str) -> int:
    """The line of the one statement that begins with this text.

    Raises:
        ValueError: no statement begins so, or several do.
    """
    lines = source.splitlines()
    found = [line for line in places(source) if lines[line - 1].strip().startswith(text)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} statements begin with {text!r}, lines {found}")
    return found[0]


def places(source: str) -> list[int]:
    """The lines of all statements of functions, also of nested ones and of those of classes."""
    tree = ast.parse(source)
    bodies = [body for node in ast.walk(tree) for body in _bodies(node)]
    return sorted({statement.lineno for body in bodies for statement in body})


def repeated(source: str) -> set[int]:
    """The lines that may run several times: in loops, and in functions that are no tests."""
    tree = ast.parse(source)
    outer = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While)
        or (isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"))
    ]
    return {
        inner.lineno for node in outer for inner in ast.walk(node) if isinstance(inner, ast.stmt)
    }


def with_places(source: str) -> str:
    """A program that calls ``late`` with its line before each statement of a function."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        for body in _bodies(node):
            body[:] = [one for statement in body for one in (_call(statement), statement)]
    imported = ast.parse("from races_late import late as _late").body
    after = next(
        number + 1
        for number, statement in enumerate(tree.body)
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    )
    tree.body[after:after] = imported
    return ast.unparse(ast.fix_missing_locations(tree))


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    """Lists of statements that run in a function, each with the node that has it as its own."""
    if isinstance(node, ast.FunctionDef):
        return [body for inside in _own(node) for body in _lists(inside)]
    return []


def _own(function: ast.FunctionDef) -> list[ast.AST]:
    """The nodes of a function but those of functions in it, which have bodies of their own."""
    found: list[ast.AST] = [function]
    for child in ast.iter_child_nodes(function):
        found += _own_below(child)
    return found


def _own_below(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
        return []
    return [node, *(one for child in ast.iter_child_nodes(node) for one in _own_below(child))]


def _lists(node: ast.AST) -> list[list[ast.stmt]]:
    lists = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [body for body in lists if isinstance(body, list) and body]


def _call(statement: ast.stmt) -> ast.stmt:
    called = ast.parse(f"_late({statement.lineno})").body[0]
    return ast.copy_location(called, statement)
