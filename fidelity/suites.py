"""The suites, each of one version, and how pytest is called on them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
"""What the runs import; a folder of its own, so that a suite's modules cannot be ours."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one package."""

    package: str
    version: str
    arguments: tuple[str, ...]
    """Arguments for pytest."""
    folder: Path | None = None
    """The folder of the tests; None for the source distribution."""
    ranks: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    adopted: bool = False
    """Whether --ddp-adopt, and no mark, puts the suite's tests on ranks."""


_NO_TRIO = tuple(f"--ignore=tests/test_async{name}.py" for name in ("", "_filters"))
_OLD_STYLE = ("-W", "default::pytest.PytestRemovedIn10Warning")
_NO_INI = ("-c", os.devnull, "--rootdir=.")
"""Arguments for a suite without settings: pytest would find those of this repository, around it."""
_NUMPY = ("fft", "linalg", "matrixlib", "polynomial")
_NETWORKX = ("classes", "drawing", "generators", "readwrite", "tests", "utils")

SUITES = (
    Suite("attrs", "26.1.0", ("tests",)),
    Suite("click", "8.3.1", ("tests", "-o", "pythonpath=src", *_OLD_STYLE)),
    Suite("jinja2", "3.1.6", ("tests", *_NO_TRIO)),
    Suite("more-itertools", "10.8.0", ("tests", *_NO_INI)),
    Suite(
        "networkx",
        "3.6.1",
        ("--pyargs", *(f"networkx.{part}" for part in _NETWORKX)),
        folder=Path(sysconfig.get_path("purelib")),
    ),
    Suite(
        "numpy",
        "2.4.6",
        ("--pyargs", *(f"numpy.{part}" for part in _NUMPY)),
        folder=Path(sysconfig.get_path("purelib")),
    ),
    Suite("pluggy", "1.7.0", ("testing",)),
    Suite(
        "torch",
        "2.13.0",
        (str(INSIDE / "test_torch_distributed.py"),),
        folder=INSIDE,
        ranks=3,  # many of its tests need three
        environment={"BACKEND": "gloo", "WORLD_SIZE": "3"},
        adopted=True,
    ),
)
