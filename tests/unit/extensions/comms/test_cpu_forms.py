"""The branches for CPUs, beside torch's own sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

from pytest_ddp.extensions.comms.stack import CPU_FORMS

_SOURCES = Path(str(dist.__file__)).parent
_CPU = re.compile(r"\bcpu\b|is_cpu|gloo", re.IGNORECASE)
_BRANCH = re.compile(r"^ +(el)?if .*(cpu|gloo)", re.IGNORECASE | re.MULTILINE)
"""Finds files with such a branch, so that few are parsed."""
_COLLECTIVE = re.compile(
    r"(all_gather|all_reduce|all_to_all|reduce_scatter|broadcast|scatter|gather|send|recv)"
    r"(_\w+)?$|shard_dim_alltoall$"
)


def test_all_branches_for_cpus_are_known() -> None:
    """A newer torch may have others: look at each of them, and add it or say why not here."""
    found = {
        (file.relative_to(_SOURCES).as_posix(), function.name)
        for file in _SOURCES.rglob("*.py")
        if _BRANCH.search(source := file.read_text())
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and any(_branches(function))
    }
    assert found == {(branch.file, branch.function) for branch in CPU_FORMS}


def _branches(function: ast.FunctionDef) -> Iterator[ast.If]:
    """Branches by device in which one side communicates and the other does so otherwise."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and _CPU.search(ast.unparse(node.test)):
            body, other = map(_calls, (node.body, node.orelse))
            leaves = isinstance(node.body[-1], ast.Return)
            if body != other and (body or other) and (other or leaves):
                yield node


def _calls(statements: list[ast.stmt]) -> set[str]:
    names = (
        ast.unparse(node.func).rpartition(".")[2]
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    )
    return {name for name in names if _COLLECTIVE.match(name)}
