"""Check data-parallel training parts against numbered guarantees, on real ranks.

In a test file of yours, with the pytest-ddp plugin installed::

    from ddp_conformance import Sampler, parametrize_with_checks

    @parametrize_with_checks([Sampler(make=make_bucket_sampler, traits={"pads", "shuffles"})])
    def test_conforms(subject, check):
        check(subject)
"""

from ddp_conformance.case import Case, IndexDataset
from ddp_conformance.pytest_frontend import parametrize_with_checks
from ddp_conformance.registry import Check, Guarantee, Level
from ddp_conformance.subjects import DataModule, Loader, Sampler, SamplerWrapper, Subject
from ddp_conformance.subjects_cache import Cache
from ddp_conformance.subjects_callbacks import Callback, ErrorPath
from ddp_conformance.subjects_loop import Leg, TrainLoop, Watch
from ddp_conformance.subjects_metrics import Evaluation, Metric
from ddp_conformance.subjects_model import TrainStep
from ddp_conformance.subjects_training import Training
from ddp_conformance.subjects_writing import Guard, Preparation, Writer
from ddp_conformance.verdict import GuaranteeError, UndecidedError, Violation

__all__ = [
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
    "Subject",
    "TrainLoop",
    "TrainStep",
    "Training",
    "UndecidedError",
    "Violation",
    "Watch",
    "Writer",
    "parametrize_with_checks",
]
