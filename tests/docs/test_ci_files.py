"""The files of docs/ci, and this project's own workflow, as linters see them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent
FILES = ROOT / "docs" / "ci"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
OURS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS = [*sorted(FILES.glob("github-*.yml")), *OURS]
YAML = [*sorted(FILES.glob("*.yml")), *WORKFLOWS, *FORMS]
_SCHEMA = ("check-jsonschema", "--builtin-schema")


def _lint(*command: str | Path) -> None:
    # jactionlint looks for shellcheck there.
    environment = os.environ | {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    linted = subprocess.run(
        [SCRIPTS / command[0], *command[1:]],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_of_github(file: Path) -> None:
    # That actions are named by tags is said in docs/ci.md.
    _lint("jactionlint", "--strict-exit", "--ignore", "unpinned-uses", file)
    _lint(*_SCHEMA, "vendor.github-workflows", file)


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_issue_forms(file: Path) -> None:
    kind = "config" if file.name == "config.yml" else "forms"
    _lint(*_SCHEMA, f"vendor.github-issue-{kind}", file)


def test_citation() -> None:
    _lint(*_SCHEMA, "vendor.citation-file-format", ROOT / "CITATION.cff")
    assert f"\nversion: {version('pytest-ddp')}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_linter_of_workflows_reads_their_shell(tmp_path: Path) -> None:
    source = (FILES / "github-cpu.yml").read_text()
    broken = tmp_path / "broken.yml"
    broken.write_text(source.replace('"$GITHUB_STEP_SUMMARY"', "$GITHUB_STEP_SUMMARY"))
    with pytest.raises(AssertionError, match="SC2086"):
        _lint("jactionlint", "--strict-exit", "--ignore", "unpinned-uses", broken)


def test_pipeline_of_gitlab() -> None:
    file = FILES / "gitlab-ci.yml"
    _lint(*_SCHEMA, "vendor.gitlab-ci", "--data-transform", "gitlab-ci", file)


def test_pipeline_of_buildkite() -> None:
    _lint(*_SCHEMA, "vendor.buildkite", FILES / "buildkite.yml")


@pytest.mark.parametrize("file", sorted(set(YAML)), ids=lambda file: file.name)
def test_style_of_yaml(file: Path) -> None:
    _lint("yamllint", "--strict", file)


@pytest.mark.parametrize("file", sorted(FILES.glob("*.sh")), ids=lambda file: file.name)
def test_shell(file: Path) -> None:
    assert os.access(file, os.X_OK)
    _lint("shellcheck", file)


def test_container_file() -> None:
    _lint("hadolint", FILES / "Dockerfile")


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    for file in FILES.iterdir():
        assert f"(ci/{file.name})" in page, file.name
