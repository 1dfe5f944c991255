"""Check data-parallel training parts against numbered guarantees, on real ranks.

In a test file of yours, with the pytest-ddp plugin installed::

    from ddp_conformance import Sampler, parametrize_with_checks

    @parametrize_with_checks([Sampler(make=make_bucket_sampler, traits={"pads", "shuffles"})])
    def test_conforms(subject, check):
        check(subject)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_conformance.caches.subjects import Cache
    from ddp_conformance.callbacks.subjects import Callback, ErrorPath
    from ddp_conformance.determinism.subjects import Leg, TrainLoop, Watch
    from ddp_conformance.framework.case import Case, IndexDataset
    from ddp_conformance.framework.registry import Check, Guarantee, Level
    from ddp_conformance.framework.subjects import Subject
    from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError, Violation
    from ddp_conformance.frontend.pytest_frontend import parametrize_with_checks
    from ddp_conformance.lifecycle.subjects import Training
    from ddp_conformance.metrics.subjects import Evaluation, Metric
    from ddp_conformance.model.subjects import TrainStep
    from ddp_conformance.sampling.subjects import Loader, Sampler, SamplerWrapper
    from ddp_conformance.windows.data import Announcement, Stamp, WindowRun
    from ddp_conformance.windows.subjects import DataModule
    from ddp_conformance.writing.subjects import Guard, Preparation, Writer
else:
    # pytest imports this package for its plugin in each session, also where no part is checked.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("ddp_conformance.api"), name)


__all__ = [
    "Announcement",
    "Cache",
    "Callback",
    "Case",
    "Check",
    "DataModule",
    "ErrorPath",
    "Evaluation",
    "Guarantee",
    "GuaranteeError",
    "Guard",
    "IndexDataset",
    "Leg",
    "Level",
    "Loader",
    "Metric",
    "Preparation",
    "Sampler",
    "SamplerWrapper",
    "Stamp",
    "Subject",
    "TrainLoop",
    "TrainStep",
    "Training",
    "UndecidedError",
    "Violation",
    "Watch",
    "WindowRun",
    "Writer",
    "parametrize_with_checks",
]
