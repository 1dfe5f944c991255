"""Sessions of nox: the versions of Python, torch and pytest that the project is for; its release.

``nox --list`` names the sessions. Those of the versions install torch from the configured package
index; on Linux, PyPI's has gigabytes of CUDA libraries, and ``PIP_EXTRA_INDEX_URL`` can name an
index of CPU builds. `docs/versions.md` has the results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["versions"]

NEWEST = "2.15.0"
"""Of torch, on the package index. The session ``nightly`` tries the next one."""
MATRIX = (
    # Python, torch, pytest, libraries
    ("3.11", "2.8.0", "8.4.0", "oldest"),
    ("3.11", "2.13.0", "8.4.0", "newest"),
    ("3.11", "2.13.0", "newest", "newest"),
    ("3.11", NEWEST, "newest", "newest"),
    ("3.12", "2.10.0", "8.4.0", "newest"),
    ("3.12", "2.14.1", "newest", "newest"),
    ("3.13", "2.11.0", "8.4.0", "newest"),
    ("3.13", NEWEST, "newest", "newest"),
    ("3.14", "2.9.1", "8.4.0", "newest"),  # the oldest torch for this Python
    ("3.14", "2.12.1", "newest", "newest"),
    ("3.14", NEWEST, "newest", "newest"),
)
IDS = [f"python-{python}-torch-{torch}-pytest-{pytest}" for python, torch, pytest, _ in MATRIX]
PARTS = {
    "names": ("tests/docs/test_private_names.py",),
    "smoke": ("tests/acceptance/verdict/test_smoke.py",),
    "verdicts": tuple(map(str, sorted(Path("tests/acceptance/verdict").glob("test_verdict_*.py")))),
    "readme": ("tests/docs/test_docs.py", "-k", "test_page_is_true and README"),
    "conformance": ("conformance", "-n", "3", "--dist", "loadfile", "--ddp-conformance-brief"),
}


@nox.session
@nox.parametrize("python,torch,pytest,libraries", MATRIX, ids=IDS)
def versions(session: nox.Session, torch: str, pytest: str, libraries: str) -> None:
    """Tests with one combination of versions; `-- smoke verdicts` selects parts of them."""
    oldest = _oldest() if libraries == "oldest" else ()
    _install(session, f"torch=={torch}", "" if pytest == "newest" else f"pytest=={pytest}", *oldest)
    _test(session)


@nox.session
def nightly(session: nox.Session) -> None:
    """The same with torch's nightly build, of the index that PIP_EXTRA_INDEX_URL names."""
    _install(session, "torch", before=("--pre",))
    _test(session)


@nox.session
def release(session: nox.Session) -> None:
    """Build wheel and sdist in dist/, check them, and test each in an environment of its own."""
    session.install("--constraint", "constraints.txt", *_group("release"))
    session.run("python", "-c", "import shutil; shutil.rmtree('dist', ignore_errors=True)")
    with tempfile.TemporaryDirectory() as copy:
        # A build leaves a folder *.egg-info where its sources are, which pip and importlib.metadata
        # then take for an installed distribution.
        session.run("python", "-m", "tests.release.building", copy)
        # The wheel is built from the sdist. The isolated builds need setuptools alone.
        session.run("python", "-m", "build", "--quiet", "--outdir", "dist", copy)
    built = [str(file) for file in sorted(Path("dist").iterdir())]
    session.run("twine", "check", "--strict", *built)
    session.run("check-wheel-contents", *(file for file in built if file.endswith(".whl")))
    session.notify("installed")
    session.notify("unpacked")


@nox.session(default=False)
def installed(session: nox.Session) -> None:
    """The wheel of dist/ in a fresh environment: the tests with known verdicts."""
    (wheel,) = Path("dist").resolve().glob("*.whl")
    session.install("--constraint", "constraints.txt", "torch")
    session.install("--constraint", "constraints.txt", str(wheel))
    session.chdir(session.create_tmp())
    session.run("python", "-m", "pytest_ddp", "doctor", "--prove=gloo", "--report=.")


@nox.session(default=False)
def unpacked(session: nox.Session) -> None:
    """The sdist of dist/, unpacked: installed with what tests need, and its own smoke test."""
    (sdist,) = Path("dist").resolve().glob("*.tar.gz")
    session.chdir(session.create_tmp())
    session.run("tar", "--extract", "--file", str(sdist), "--strip-components=1", external=True)
    _install(session, "torch", constraints="constraints.txt")
    _run(session, *PARTS["smoke"], "tests/test_architecture.py")


def _install(
    session: nox.Session, *requirements: str, constraints: str = "", before: tuple[str, ...] = ()
) -> None:
    """The project with its tests and reference systems, in these versions.

    torch first and by itself, with the options ``before``, so that the resolver chooses no other
    one for a library's sake.
    """
    pins = [requirement for requirement in requirements if requirement]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pin for pin in pins if "==" in pin))
        file.flush()
        limits = ["--constraint", constraints or file.name]
        session.install(*limits, *before, "setuptools>=77", "wheel", *pins[:1])
        session.install(
            *(*limits, "--no-build-isolation", "--editable", ".", "--editable", "./reference"),
            *(*_group("tests"), *pins),
        )
    session.run("python", "-m", "pip", "list", "--format=freeze")


def _group(name: str) -> list[str]:
    # In place of pip's --group, which the pip of a new environment may be too old for.
    return nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), name)


def _oldest() -> Iterator[str]:
    """The lowest version of each library that the project says to work with."""
    for folder in (".", "reference"):
        for text in nox.project.load_toml(f"{folder}/pyproject.toml")["project"]["dependencies"]:
            requirement = Requirement(text)
            for limit in requirement.specifier:
                if requirement.name not in {"torch", "pytest"}:
                    yield f"{requirement.name}=={limit.version}"


def _test(session: nox.Session) -> None:
    parts = session.posargs or PARTS
    failed = []
    for part in parts:
        try:
            _run(session, *PARTS[part])
        except nox.command.CommandFailed:
            failed.append(part)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def _run(session: nox.Session, *arguments: str) -> None:
    command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive")
    session.run("timeout", "-k", "10", "1800", *command, *arguments, external=True)
