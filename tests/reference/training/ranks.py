"""Train a list of configurations one after the other in this rank; run by torchrun.

``torchrun --nproc-per-node N ranks.py JOBS.json DIRECTORY``. Each job is a dict with
``name``, ``config`` (TrainConfig's fields) and, where asked, ``skew`` (ranks draw different
initial weights) and ``tracks`` (the model keeps a mean of the fields that it was trained on).
Every rank writes what it saw to ``rank<r>of<n>.json``. Each job makes and leaves its own process
group, in the same process.
"""

import json
import math
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
import torch._dynamo
import torch.distributed as dist
from ddp_reference.training import lifecycle
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.distributed import World
from ddp_reference.training.loop import Delivered, Event, Stepped
from ddp_reference.training.models import POINTS
from ddp_reference.training.stages import STAGES, Stage
from ddp_reference.training.wrap import wrap
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

PATHS = ("data", "checkpoint", "resume")


Build = Callable[[Stage, TrainConfig], nn.Module]


class Seen:
    """What one job did in this rank, apart from its result."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[bool, int, int, tuple[int, ...], tuple[float, ...]]] = []
        self.norms: list[float] = []
        self.local_parameters = 0
        self.static_graph = False
        self.evaluated_with: list[list[float]] = []

    def observe(self, event: Event) -> None:
        if isinstance(event, Delivered):
            place = (event.training, event.epoch, event.batch)
            self.deliveries.append((*place, event.ids, event.weights))
        if isinstance(event, Stepped):
            self.norms.append(event.norm)

    def look_at(self, model: nn.Module) -> None:
        self.local_parameters = sum(
            (p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters()
        )
        if isinstance(model, DistributedDataParallel):
            self.static_graph = model.static_graph

    def tracking(self, build: Build) -> Build:
        """Models with a buffer that each rank writes, as batch normalisation does."""

        def build_and_track(stage: Stage, config: TrainConfig) -> nn.Module:
            model = build(stage, config)
            model.register_buffer("mean", torch.zeros(POINTS))
            model.register_forward_pre_hook(self._track)
            return model

        return build_and_track

    def _track(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        mean = model.get_buffer("mean")
        if model.training:
            mean.lerp_(inputs[0].detach().mean(0), 0.1)
        else:
            self.evaluated_with.append(mean.tolist())


def train(job: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    seen = Seen()
    options = dict(job["config"])
    for key in PATHS:
        if options.get(key) is not None:
            options[key] = directory / options[key]
    config = TrainConfig(**options)
    torch._dynamo.reset()
    counters.clear()
    build = skewed(lifecycle.build_model) if job.get("skew") else lifecycle.build_model
    build = seen.tracking(build) if job.get("tracks") else build

    def wrap_and_look(model: nn.Module, config: TrainConfig, world: World) -> nn.Module:
        wrapped = wrap(model, config, world)
        seen.look_at(wrapped)
        return wrapped

    with (
        patch.object(lifecycle, "wrap", wrap_and_look),
        patch.object(lifecycle, "build_model", build),
    ):
        summary = lifecycle.run(STAGES[config.stage], config, seen.observe)
    return {
        "epochs": [asdict(report) for report in summary.epochs],
        "finished": summary.finished,
        "digest": dict(summary.digest),
        "graphs": counters["stats"]["unique_graphs"],
        **vars(seen),
        "left": leftovers(),
    }


def skewed(build: Build) -> Build:
    """The usual weights on rank 0, others elsewhere."""

    def build_differently(stage: Stage, config: TrainConfig) -> nn.Module:
        model = build(stage, config)
        rank = int(os.environ.get("RANK", "0"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(rank * math.pi)
        return model

    return build_differently


def leftovers() -> dict[str, Any]:
    """What a finished run must not leave in its process."""
    return {
        "group": dist.is_initialized(),
        "children": [
            command
            for command in map(" ".join, (c.cmdline() for c in psutil.Process().children(True)))
            # These serve the workers of all loaders and end with their process.
            if not re.search("multiprocessing.(forkserver|resource_tracker)", command)
        ],
        "threads": [t.name for t in threading.enumerate() if t is not threading.main_thread()],
        "gloo": [name for name in native_threads() if "gloo" in name],
        "segments": [m.path for m in psutil.Process().memory_maps() if "/dev/shm/#" in m.path],
    }


def native_threads() -> list[str]:
    return [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]


def attempt(job: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    try:
        return train(job, directory)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def main(jobs: Path, directory: Path) -> None:
    # Not in inductor, which imports what torch itself has deprecated.
    warnings.filterwarnings("error", module=r"ddp_reference")
    results = {job["name"]: attempt(job, directory) for job in json.loads(jobs.read_text())}
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    (directory / f"rank{rank}of{size}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
