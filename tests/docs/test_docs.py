"""The README and the pages in docs/ do what they say.

A python block that begins with a comment naming a file is written to that file; a
console block is run; a text block is what the last command must have printed. "..."
stands for anything. What a page has no file name for must at least compile. Commands see
the packages that this one declares, and those that the page says to install, and no others.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs import declared
from tests.docs.environment import of_a_reader

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MADE_BY_CI = (
    *("make ", "pip install ./pytest-ddp", "git "),
    *("python -m benchmarks", "python -m tests.chaos"),
)
"""Commands that this very test run is part of, that take hours, or that need the network."""


@dataclass(frozen=True)
class Block:
    kind: str
    text: str


def _blocks(page: Path) -> list[Block]:
    return [Block(*found.groups()) for found in _BLOCK.finditer(page.read_text())]


def _run(command: str, directory: Path, programs: Path) -> str:
    finished = subprocess.run(
        ["timeout", "-k", "5", "900", "bash", "-c", command],
        cwd=directory,
        env=of_a_reader()
        | {"PYTEST_ADDOPTS": "-p no:cacheprovider", "PATH": f"{programs}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = finished.stdout + finished.stderr
    if not re.match(r"(python -m )?pytest ", command):
        assert finished.returncode == 0, f"$ {command}\n{printed}"
    return printed


def _must_contain(printed: str, expected: str) -> None:
    pattern = ".*?".join(
        re.escape(part.strip("\n")).replace(r"\ ", r"\s+") for part in expected.split("...")
    )
    assert re.search(pattern, printed, re.DOTALL), (
        f"{expected}\nis not what was printed:\n{printed}"
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page.name == "README.md" else pytest.mark.exhaustive)
        for page in PAGES
    ],
    ids=lambda page: page.name,
)
def test_page_is_true(page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    programs = declared.make(tmp_path_factory.mktemp("venv"), declared.named_by(page.read_text()))
    follow(page, tmp_path, programs)


def follow(page: Path, directory: Path, programs: Path) -> None:
    """Do what the page says, in this directory and with these programs."""
    printed = ""
    for block in _blocks(page):
        if block.kind == "python":
            compile(block.text, str(page), "exec")
            name = re.match(r"# (\S+\.py)\n", block.text)
            if name:
                (directory / name[1]).write_text(block.text)
        elif block.kind == "console":
            for line in block.text.splitlines():
                command = line.removeprefix("$ ")
                if not command.startswith(_MADE_BY_CI):
                    printed = _run(command, directory, programs)
        elif block.kind == "text":
            _must_contain(printed, block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_begins_with_the_two_commands() -> None:
    commands = [block.text for block in _blocks(ROOT / "README.md") if block.kind == "console"]
    assert commands[0].splitlines() == ["$ make conformance", "$ make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^conformance:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_commands_of_make_are_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for name in re.findall(r"^\$ make ([\w-]+)", page.read_text(), re.MULTILINE):
            assert name in targets, f"{page.name}: make {name}"


def test_calls_that_a_port_replaces_are_in_their_files() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    calls = {re.findall("`(.+?)`", call)[0]: re.findall("`(.+?)`", files) for call, files in rows}
    assert "memfd_create" in calls
    for call, files in calls.items():
        for file in files:
            assert call in (ROOT / "pytest_ddp" / file).read_text(), f"{call}: {file}"


@pytest.mark.parametrize("name", ["architecture", "private-names", "versions"])
def test_files_of_the_architecture_are_there(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    roots = (ROOT, ROOT / "pytest_ddp", ROOT / "conformance")
    for file in re.findall(r"`([\w/]+/\w+\.py)\b", page):
        assert any((root / file).exists() for root in roots), file
