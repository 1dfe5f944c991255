"""The jobs of docs/ci, run as their CI systems would run them, with stand-ins for what is not here.

Not run: what installs packages, tools of NVIDIA, and the doctor, of which other tests have seen
every option that stands in these files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.environment import without_outer_run

FILES = Path(__file__).parents[3] / "docs" / "ci"
_GITHUB = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
"""The runner's ``shell: bash``."""
_PYTHON = f"""\
#!/bin/bash
case "$*" in
    "-m pip "*|"-m venv "*|"-m pytest_ddp doctor"*) echo "$*" >> not-run;;
    "-m pytest "*) exec "${{FOR_PYTEST:-{sys.executable}}}" "$@";;
    *) exec {sys.executable} "$@";;
esac
"""
STAND_INS = {
    "python": _PYTHON,
    "python3": _PYTHON,
    "nvidia-smi": '#!/bin/bash\necho "nvidia-smi $*" >> not-run\n',
    "srun": '#!/bin/bash\nexec "$@"\n',
    "buildkite-agent": '#!/bin/bash\necho "$*" > annotated; cat >> annotated\n',
}
TESTS = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=2)
    def test_hangs(ddp):
        if ddp.rank:
            dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_good(ddp):
        dist.all_reduce(torch.ones(1))
"""
STAYS = """
    import time
    from pathlib import Path

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_fails(ddp):
        assert ddp.rank == 0

    @pytest.mark.ddp(world_size=2)
    def test_stays(ddp):
        Path(f"begun{ddp.rank}").touch()
        time.sleep(600)
"""
"""A job that is ended before its time, when one test has failed."""


@dataclass(frozen=True)
class Job:
    """What a CI system runs of a file, one script after the other."""

    file: str
    name: str
    scripts: tuple[str, ...]
    environment: dict[str, str]
    shell: tuple[str, ...] = ("bash", "-eo", "pipefail")

    def __str__(self) -> str:
        return f"{self.file}-{self.name}"


def every() -> list[Job]:
    """One job of each kind, and both groups of one kind."""
    return [
        *(_github("github-cpu.yml", "cpu", group) for group in ("1", "2")),
        _github("github-gpu.yml", "gpu"),
        *(_gitlab(name) for name in ("cpu", "gpu")),
        *_buildkite(),
        Job("slurm.sh", "batch", ("./slurm.sh",), {"SLURM_JOB_ID": "7"}),
    ]


def _github(file: str, name: str, group: str = "") -> Job:
    job = _load(file)["jobs"][name]
    scripts = tuple(step["run"] for step in job["steps"] if "run" in step)
    environment = {
        variable: value.replace("${{ matrix.group }}", group)
        for variable, value in job.get("env", {}).items()
    }
    files = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_PATH": "path"}
    return Job(file, f"{name}{group}", scripts, {**environment, **files}, _GITHUB)


def _gitlab(name: str) -> Job:
    content = _load("gitlab-ci.yml")
    after = "\n".join(content[".tests"]["after_script"])
    scripts = ("\n".join(content[name]["script"]), f"{{\n{after}\n}} > summary.md")
    shares = {"CI_NODE_TOTAL": str(content[name].get("parallel", 1)), "CI_NODE_INDEX": "1"}
    return Job("gitlab-ci.yml", name, scripts, shares)


def _buildkite() -> list[Job]:
    return [
        Job(
            "buildkite.yml",
            step["key"],
            (step["command"],),
            {
                "BUILDKITE_LABEL": step["label"],
                "BUILDKITE_JOB_ID": "7",
                "BUILDKITE_PARALLEL_JOB": "0",
                "BUILDKITE_PARALLEL_JOB_COUNT": str(step.get("parallelism", 1)),
                **step.get("env", {}),
            },
        )
        for step in _load("buildkite.yml")["steps"]
    ]


def _load(file: str) -> Any:
    return yaml.safe_load((FILES / file).read_text())


class Checkout:
    """A user's project with a copy of the files, on a machine with stand-ins."""

    def __init__(self, directory: Path, python: Path | None = None) -> None:
        """
        Args:
            directory: for all that there is.
            python: runs pytest, if another interpreter is to.
        """
        self.directory = directory / "project"
        self._python = {} if python is None else {"FOR_PYTEST": str(python)}
        self._tools = directory / "tools"
        for name, source in STAND_INS.items():
            self._write(self._tools / name, source)
        self._write(self.directory / "tests" / "test_model.py", textwrap.dedent(TESTS))
        for script in FILES.glob("*.sh"):
            self._write(self.directory / script.name, script.read_text())
            self._write(self.directory / ".buildkite" / script.name, script.read_text())
        ini = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
        self._write(self.directory / "pytest.ini", ini)

    def _write(self, path: Path, source: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        path.chmod(0o755)

    def start(self, job: Job, script: str) -> subprocess.Popen[bytes]:
        """Start a script of a job, leader of its own process group; it prints to ``log``."""
        file = self._tools / "script.sh"
        self._write(file, script + "\n")
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*job.shell, str(file)],
                cwd=self.directory,
                env=self._environment() | job.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, job: Job) -> list[int]:
        """Run all scripts of a job, whatever becomes of them; their exit codes."""
        return [self.start(job, script).wait(240) for script in job.scripts]

    def read(self, name: str) -> str:
        """The content of a file of the project."""
        return (self.directory / name).read_text()

    def _environment(self) -> dict[str, str]:
        clean = {
            name: value
            for name, value in without_outer_run().items()
            if not name.startswith(("DDP_ACCEPTANCE", "COV"))
        }
        return clean | self._python | {"PATH": f"{self._tools}:{os.environ['PATH']}", "CI": "true"}
