"""An interpreter that sees this package, what it declares and what a page installs, and no more."""

from __future__ import annotations

import re
import shlex
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE = "pytest-ddp"
OURS = {
    PACKAGE: ("pytest_ddp", "conformance/ddp_conformance"),
    "ddp-reference": ("reference/ddp_reference",),
}
_FOLDERS = {"./pytest-ddp": PACKAGE, "./pytest-ddp/reference": "ddp-reference"}
"""What pages install from a clone."""


def named_by(page: str) -> list[Requirement]:
    """This package, and whatever the page's own lines of ``pip install`` name."""
    lines = re.findall(r"pip install ([^`\n]+)", page)
    words = [_FOLDERS.get(word, word) for line in lines for word in shlex.split(line)]
    names = [word for word in words if re.match(r"[A-Za-z]", word)]
    return [Requirement(name) for name in (PACKAGE, *names)]


def make(directory: Path, requirements: Iterable[Requirement]) -> Path:
    """A virtual environment with these requirements and theirs; returns its folder of programs.

    Everything in it is a link to what is installed here, so that it is made in no time.
    """
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    programs = directory / "bin"
    for found in {one.name: one for one in _closure(requirements)}.values():
        for entry in _entries(found):
            if not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
        for script in found.entry_points.select(group="console_scripts"):
            _write_program(programs / script.name, script.module, script.attr)
    return programs


def _closure(requirements: Iterable[Requirement]) -> Iterator[Distribution]:
    left, seen = list(requirements), set()
    while left:
        requirement = left.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        found = _installed(requirement.name)
        yield found
        # A marker without extras is asked once, with an empty one.
        for needed in map(Requirement, found.requires or ()):
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                left.append(needed)


def _installed(name: str) -> Distribution:
    # A build in the checkout leaves a folder *.egg-info, which `distribution` may find first and
    # which has no list of files.
    for found in distributions(name=name):
        if found.read_text("RECORD") is not None:
            return found
    raise PackageNotFoundError(name)


def _entries(found: Distribution) -> Iterator[Path]:
    """The files and folders of a distribution that lie in site-packages themselves."""
    files = found.files or ()
    own = OURS.get(found.name, ())
    tops = {file.parts[0] for file in files if file.parts[0] not in {"..", "__pycache__"}}
    for top in tops:
        if not own or top.endswith(".dist-info"):
            yield Path(str(found.locate_file(top)))
    yield from (ROOT / folder for folder in own)


def _write_program(path: Path, module: str, attribute: str) -> None:
    python = path.parent / "python"
    path.write_text(f"#!{python}\nfrom {module} import {attribute} as main\n\nmain()\n")
    path.chmod(0o755)
