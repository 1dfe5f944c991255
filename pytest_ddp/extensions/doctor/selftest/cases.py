"""The parts of the self-test, and which of them a machine can run."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass

from pytest_ddp.extensions.doctor.selftest import inner_session
from pytest_ddp.extensions.doctor.selftest.judge import Expected

_FEW = 2
_MOST = 8
"""Ranks of the part that has one for each GPU."""
_LONG = 1200.0
"""Seconds for a part that launches programs one after the other."""
_XDIST = ("xdist",)
_WORKERS = ("-p", "xdist", "-n", "2")
_CONFORMANCE = ("ddp_conformance",)
_SHORT = "--ddp-timeout=30"
"""Hangs on NCCL are not proved: each takes the whole timeout."""
_SHARED = "--ddp-ranks-per-gpu=2"


@dataclass(frozen=True, slots=True)
class SelftestCase:
    """One part of the selftest: a session of pytest."""

    name: str
    about: str
    suites: tuple[str, ...]
    backend: str
    size: int
    """Ranks of every test."""
    gpus: int = 0
    """GPUs that the part needs."""
    modules: tuple[str, ...] = ()
    """Modules that must be installed."""
    arguments: tuple[str, ...] = ()
    limit: float = 600.0
    """Seconds for the session."""

    def obstacle(self, gpus: int) -> str:
        """Why the part cannot run with so many GPUs; empty if it can."""
        if gpus < self.gpus:
            return f"it needs {self.gpus} GPUs, and {gpus} are usable"
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} is not installed" if absent else ""


def selftest_cases(gpus: int) -> list[SelftestCase]:
    """All parts of the selftest, as large as this number of GPUs allows."""
    training = ("test_training.py", "test_warm.py")
    aborts = ("test_aborts.py",)
    everywhere = ("test_verdicts.py", *training, *aborts)
    leases = ("test_leases.py",)
    guarantees, own_gpus = "test_guarantees.py", "test_own_gpus.py"
    pair = max(1, min(gpus, _FEW))
    found = [
        SelftestCase("gloo", "verdicts, training, warm ranks, aborts", everywhere, "gloo", _FEW),
        SelftestCase("workers", "tests under xdist", leases, "gloo", _FEW, 0, _XDIST, _WORKERS),
        SelftestCase("nccl-training", "training, warm ranks", training, "nccl", pair, 1),
        SelftestCase(
            *("shared-training", "training, two ranks on one GPU", training, "nccl", _FEW, 1),
            arguments=(_SHARED,),
        ),
        SelftestCase(
            "shared-verdicts",
            "verdicts and aborts, two ranks on one GPU",
            *(("test_verdicts.py", *aborts), "nccl", _FEW, 1),
            arguments=(_SHARED, _SHORT),
        ),
        SelftestCase(
            *("differences", "what NCCL does otherwise than gloo", ("test_differences.py",)),
            *("nccl", _FEW, 1),
            arguments=(_SHARED,),
        ),
        SelftestCase(
            *("nccl-verdicts", "verdicts", ("test_verdicts.py",), "nccl", _FEW, _FEW),
            arguments=(_SHORT,),
        ),
        SelftestCase(
            "leases", "one test on a GPU at a time", leases, "nccl", 1, 1, _XDIST, _WORKERS
        ),
        SelftestCase("crashes", "what a GPU dies of", ("test_gpu_crashes.py",), "nccl", 1, 1),
        SelftestCase(
            *("aborts", "ranks that end while others wait", aborts, "nccl", _FEW, _FEW),
            arguments=(_SHORT,),
        ),
        SelftestCase(
            *("shared-guarantees", "conformance, two ranks on one GPU", (guarantees,)),
            *("nccl", _FEW, 1),
            modules=_CONFORMANCE,
            arguments=(_SHARED,),
            limit=_LONG,
        ),
        SelftestCase(
            *("guarantees", "conformance", (guarantees, own_gpus), "nccl", _FEW, _FEW),
            modules=_CONFORMANCE,
            limit=_LONG,
        ),
    ]
    many = max(_FEW + 1, min(gpus, _MOST))
    return [*found, SelftestCase("all-gpus", "a rank for each GPU", training, "nccl", many, many)]


def expected_of(case: SelftestCase) -> Expected:
    """Reads ``EXPECTED`` of the suites of a part without importing them."""
    found: dict[str, tuple[str, str]] = {}
    for suite in case.suites:
        for node in ast.parse((inner_session.SUITES / suite).read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECTED":
                found |= ast.literal_eval(node.value)
    return found
