"""The libraries with parts that are checked: one file ``<folder>/test_<module>.py`` each."""

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
    room: str = ""
    """The folder of its file. What torch has is of every room, and lies beside them."""

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
        folder = ".".join(filter(None, ("conformance.ecosystem", self.room)))
        file = importlib.import_module(f"{folder}.test_{self.module}")
        parts: Sequence[Part] = file.PARTS
        return parts


LIBRARIES = (
    Library("torch", "torch"),
    Library("lightning", "lightning", "training"),
    Library("torchmetrics", "torchmetrics", "metrics"),
    Library("torch_geometric", "torch-geometric", "loading"),
    Library("tensorboard", "tensorboard", "writing"),
    Library("accelerate", "accelerate", "training"),
    Library("transformers", "transformers", "training"),
    Library("ignite", "pytorch-ignite", "training"),
    Library("datasets", "datasets", "loading"),
    Library("torchdata", "torchdata", "loading"),
    Library("webdataset", "webdataset", "loading"),
    Library("torcheval", "torcheval", "metrics"),
    Library("mmengine", "mmengine-lite", "training"),
    Library("safetensors", "safetensors", "writing"),
    Library("ema_pytorch", "ema-pytorch", "weights"),
    Library("schedulefree", "schedulefree", "weights"),
    Library("pytorch_metric_learning", "pytorch-metric-learning", "metrics"),
    Library("monai", "monai", "training"),
)
