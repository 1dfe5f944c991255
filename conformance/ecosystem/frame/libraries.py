"""The libraries whose parts are looked at: one file ``test_<module>.py`` each."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from conformance.ecosystem.frame.parts import Part


@dataclass(frozen=True)
class Library:
    """A library by the name that it is imported by, and that it is installed by."""

    module: str
    distribution: str

    @property
    def installed(self) -> bool:
        """Whether its parts can be looked at here."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """The one that is installed."""
        return metadata.version(self.distribution)

    @property
    def parts(self) -> Sequence[Part]:
        """What its file declares; imports the library."""
        file = importlib.import_module(f"conformance.ecosystem.test_{self.module}")
        parts: Sequence[Part] = file.PARTS
        return parts


LIBRARIES = (
    Library("torch", "torch"),
    Library("lightning", "lightning"),
    Library("torchmetrics", "torchmetrics"),
    Library("torch_geometric", "torch-geometric"),
    Library("tensorboard", "tensorboard"),
    Library("accelerate", "accelerate"),
    Library("transformers", "transformers"),
    Library("ignite", "pytorch-ignite"),
    Library("datasets", "datasets"),
    Library("torchdata", "torchdata"),
    Library("webdataset", "webdataset"),
    Library("torcheval", "torcheval"),
    Library("mmengine", "mmengine-lite"),
    Library("safetensors", "safetensors"),
    Library("ema_pytorch", "ema-pytorch"),
    Library("schedulefree", "schedulefree"),
    Library("pytorch_metric_learning", "pytorch-metric-learning"),
    Library("monai", "monai"),
)
