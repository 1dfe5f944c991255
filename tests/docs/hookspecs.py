"""The page of our hooks, made of ``pytest_ddp/hookspecs.py``.

``python -m tests.docs.hookspecs`` writes it anew.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_ddp import hookspecs
from pytest_ddp.rank.operations.table import Form
from pytest_ddp.rank.operations.wait import Wait
from pytest_ddp.session.planned_runs import ItemVerdict, PlannedRun, RunPlan, RunResult
from pytest_ddp.settings.layout import Placement
from pytest_ddp.settings.mark import DdpTest, MarkArgument

PAGE = Path(__file__).parents[2] / "docs" / "hookspecs.md"
_RECORDS = (
    *(MarkArgument, DdpTest, RunPlan, PlannedRun, RunResult, ItemVerdict, Placement),
    *(Form, Wait),
)
_WIDTH = 100
"""The width of a line of code; ruff formats the page's blocks as well."""
_END = "## The hooks\n"
"""Up to here the page is written by hand."""


def render() -> str:
    """The page as it has to be."""
    begin, _, _ = PAGE.read_text().partition(_END)
    return begin + "\n".join((_END, *_hooks(), "## Records\n", *map(_record, _RECORDS)))


def _hooks() -> Iterator[str]:
    source = inspect.getsource(hookspecs)
    tree = ast.parse(source)
    lines = source.splitlines()
    sections = {n: text[1] for n, line in enumerate(lines) if (text := re.match("# -+ (.*)", line))}
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for hook in hooks:
        for number in [number for number in sections if number < hook.lineno]:
            section = sections.pop(number)
            yield f"### {section[0].upper()}{section[1:]}\n"
        returns = "None" if hook.returns is None else ast.unparse(hook.returns)
        arguments = ast.unparse(hook.args)
        signature = f"def {hook.name}({arguments}) -> {returns}: ..."
        if len(signature) > _WIDTH:
            signature = f"def {hook.name}(\n    {arguments}\n) -> {returns}: ..."
        yield f"```python\n{signature}\n```\n"
        yield _markdown(ast.get_docstring(hook) or "")


def _record(record: type) -> str:
    tree = ast.parse(inspect.getsource(record)).body[0]
    assert isinstance(tree, ast.ClassDef)
    lines = [f"`{record.__module__}.{record.__name__}`: {ast.get_docstring(tree)}\n"]
    for field, doc in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            lines.append(f"- `{ast.unparse(field)}`")
            if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                lines[-1] += f": {' '.join(doc.value.value.split())}"
    return _markdown("\n".join(lines))


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+)`", r"``\1``", text)
    text = re.sub(r"^:param (\w+):", r"- `\1`:", text, flags=re.MULTILINE)
    return "\n".join(line.replace("``", "`").rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
