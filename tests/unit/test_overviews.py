"""Overviews: comments that begin with ``# Overview`` name things that exist in the code.

A name may be the module's own or stand in a module of the plugin that it imports, as the members
of an enumeration and the messages of the protocol do.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pytest_ddp"
FILES = sorted(file for file in PACKAGE.rglob("*.py") if "# Overview\n" in file.read_text())


def overviews(text: str) -> Iterator[str]:
    """Each overview of a module: the lines of a comment whose first line is ``# Overview``."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.strip() == "# Overview":
            block = []
            for below in lines:
                if not below.lstrip().startswith("#"):
                    break
                block.append(below)
            yield "\n".join(block)


def named(overview: str) -> set[str]:
    """The identifiers in backticks."""
    quoted = re.findall(r"`([^`\n]+)`", overview)
    return {name for text in quoted for name in re.findall(r"[A-Za-z_]\w*", text)}


def names_of(text: str) -> set[str]:
    """The identifiers of a module's code; its comments and strings are not searched."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def imported_by(text: str) -> Iterator[Path]:
    """The files of the plugin that a module imports, or imports something from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
                if path.is_relative_to(PACKAGE) and path.is_file():
                    yield path


def missing(text: str) -> set[str]:
    """Identifiers that an overview names and neither the code nor what it imports has."""
    known = names_of(text).union(*(names_of(file.read_text()) for file in imported_by(text)))
    return {name for overview in overviews(text) for name in named(overview)} - known


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_what_an_overview_names_exists_in_its_module(file: Path) -> None:
    text = file.read_text()
    assert all(map(named, overviews(text))), "an overview without an identifier"
    assert missing(text) == set()


def test_there_are_overviews() -> None:
    assert {"session", "status", "rank"} <= {file.parent.name for file in FILES}


def test_a_name_that_is_gone_is_found() -> None:
    text = (
        "# Overview\n#\n# `Door.open` moves `_state` on.\n\n# `other`\nclass Door:\n    open = 1\n"
    )
    assert missing(text) == {"_state"}


def test_a_name_in_a_string_or_a_comment_is_no_code() -> None:
    assert missing('# Overview\n# `one` `two`\n"""one"""  # two\n') == {"one", "two"}


def test_a_name_of_an_imported_module_is_found() -> None:
    text = (
        "from pytest_ddp.protocol.messages import Phase\n# Overview\n# `Phase.CALL` `Phase.GONE`\n"
    )
    assert missing(text) == {"GONE"}
