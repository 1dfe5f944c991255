"""A suite whose modules, wherever they lie, take down what a process looks like at import.

Data for ``test_environment_at_import.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.acceptance.suite import INNER, Suite

PREAMBLE = """
import os, random, socket, tempfile, threading, time, uuid
import numpy, torch
import torch.distributed as dist

STATES = {}
"""
ENVIRONMENT = """
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    STATES[name] = os.environ.get(name)
"""
DRAWN = """
LISTENING = socket.create_server(("127.0.0.1", 0))
STATES |= {
    "uuid": str(uuid.uuid4()),
    "time": time.time_ns(),
    "random": random.random(),
    "numpy": numpy.random.random(),
    "pid": os.getpid(),
    "port": LISTENING.getsockname()[1],
    "initialized": dist.is_initialized(),
    "torch seed": torch.initial_seed(),
    "torch draw": torch.rand(3).tolist(),
    "set order": list({f"word {number}" for number in range(30)}),
}
"""
FOLDER = """
STATES["folder"] = tempfile.mkdtemp(dir=os.environ["FOLDERS"])
"""
THREAD = """
def alive():
    return THREAD.is_alive()

THREAD = threading.Thread(target=threading.Event().wait, daemon=True)
THREAD.start()
"""
EVERYTHING = PREAMBLE + ENVIRONMENT + DRAWN + FOLDER + THREAD
INSTALLED = {
    "calm_party": PREAMBLE + DRAWN,
    "asking_party": PREAMBLE + ENVIRONMENT + DRAWN,
    "threaded_party": PREAMBLE + DRAWN + THREAD,
    "folder_party": PREAMBLE + DRAWN + FOLDER,
}
"""Third-party packages; the others are somehow the user's."""
PLACES = (
    *("test_first", "test_second", "conftest", "own_plugin", "own_package", "editable_package"),
    *("local_package", *INSTALLED),
)
TEST = (
    EVERYTHING
    + """
import json, sys
from pathlib import Path

import pytest

import conftest, own_plugin
import own_package, editable_package, local_package
import calm_party, asking_party, threaded_party, folder_party

def take_down(name):
    module = sys.modules[name]
    alive = {"thread": module.alive()} if hasattr(module, "alive") else {}
    return module.STATES | alive

# A test that draws like its peers comes before the other file is imported.
@pytest.mark.ddp(world_size=2, seed="same")
def test_states():
    file = Path(os.environ["FOUND"], f"{__name__} {os.environ['RANK']}")
    file.write_text(json.dumps({name: take_down(name) for name in NAMES}))
"""
)


def install(
    site: Path,
    name: str,
    source: str,
    *,
    url: str = "",
    editable: Path | None = None,
    entry_point: str = "",
) -> None:
    """What pip leaves behind: a package with its metadata.

    Args:
        site: a folder called ``site-packages``.
        name: of the package and its distribution.
        source: of the package's ``__init__``.
        url: where it was installed from, if not from an index.
        editable: the folder that holds the package, if it is not copied.
        entry_point: the group of an entry point that is the package itself.
    """
    package = (editable or site) / name / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text(source)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("" if editable else f"{name}/__init__.py,,\n")
    (info / "top_level.txt").write_text(f"{name}\n")
    if entry_point:
        (info / "entry_points.txt").write_text(f"[{entry_point}]\n{name} = {name}\n")
    if url:
        kind = {"editable": True} if editable else {}
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": kind}))


def write_states(suite: Suite) -> dict[str, str]:
    """Write the suite; return the environment that its runs need."""
    outside = suite.directory.parent / f"{suite.directory.name}-outside"
    site, checkout, local = outside / "site-packages", outside / "checkout", outside / "local"
    for name, source in INSTALLED.items():
        install(site, name, source)
    install(site, "local_package", EVERYTHING, url=local.as_uri())
    install(site, "editable_package", EVERYTHING, url=checkout.as_uri(), editable=checkout)
    for name in ("conftest.py", "own_plugin.py", "own_package/__init__.py"):
        suite.write(name, EVERYTHING)
    for name in ("test_first", "test_second"):
        others = set(PLACES) - {"test_first", "test_second"}
        suite.write(f"{name}.py", TEST.replace("NAMES", str(sorted({name, *others}))))
    local.mkdir()
    return {"PYTHONPATH": os.pathsep.join(map(str, (INNER, suite.directory, site, checkout)))}


def read_states(found: Path) -> dict[str, dict[str, str]]:
    """How the ranks' states relate, by place: see :func:`relation`."""
    states: dict[str, dict[str, list[Any]]] = {}
    for file in ("test_first", "test_second"):
        for rank in (0, 1):
            for place, taken in json.loads((found / f"{file} {rank}").read_text()).items():
                if place == "test_second" or file == "test_first":
                    for name, value in taken.items():
                        states.setdefault(place, {}).setdefault(name, []).append(value)
    return {
        place: {name: relation(values) for name, values in taken.items()}
        for place, taken in states.items()
    }


def relation(values: list[Any]) -> str:
    """What ranks 0 and 1 have to do with each other: words that compare between two runs."""
    first, second = values
    if [first, second] == ["0", "1"]:
        return "its own rank"
    if first != second:
        return "its own"
    return f"{first} for all" if first in (None, True, False, "2") else "the same"


def under_torchrun(suite: Suite, *args: str, env: dict[str, str], seconds: float = 100) -> str:
    """Run ``torchrun -m pytest`` on the suite, without the plugin; what it printed.

    Raises:
        AssertionError: it failed, or did not end in time.
    """
    clean = {k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR") if k in os.environ}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    pytest = ("-m", "pytest", "-p", "no:ddp", "-p", "no:cacheprovider")
    with (suite.directory.parent / f"{suite.directory.name}-torchrun").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *launcher, *pytest, *args],
            cwd=suite.directory,
            env=clean | env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()  # the launcher ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        text = output.read()
    assert code == 0, text
    return text
