"""The public names, with all that they import; the package imports it when one is used."""

# ruff: noqa: F401 - the package lists them in its __all__

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
