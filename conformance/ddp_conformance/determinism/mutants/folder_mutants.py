"""DET-07: training loops that go on from a checkpoint of which a file is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddp_conformance.determinism.mutants.loop_mutants import Augments
from ddp_conformance.determinism.mutants.part_mutants import ReadsByItself, random_states
from ddp_conformance.determinism.subjects import TrainLoop
from ddp_conformance.framework.mutants import BenignVariant, Mutant


class Folder(ReadsByItself):
    """Saves a folder: files that all ranks read, and one of each rank's own.

    What one rank cannot read, all refuse.
    """

    def save(self, path: Path) -> None:
        content = self.content()
        own = content.pop("ranks")[self.case.rank]
        parts = {f"rank_{self.case.rank}.pt": own}
        if self.case.rank == 0:
            path.mkdir()
            parts |= self.files_of(content)
        if dist.is_initialized():
            dist.barrier()
        for name, part in parts.items():
            torch.save(part, path / name)

    def files_of(self, content: dict[str, Any]) -> dict[str, Any]:
        """What rank 0 writes."""
        position = {name: content.pop(name) for name in ("epoch", "step")}
        return {f"{name}.pt": part for name, part in content.items()} | {"position.pt": position}

    def read(self, path: Path) -> Any:
        failure = ""
        content = None
        try:
            content = self.collected(path)
        except FileNotFoundError as error:
            failure = f"{Path(error.filename).name} is missing"
        failures = [failure]
        if dist.is_initialized():
            failures = [""] * self.case.world_size
            dist.all_gather_object(failures, failure)
        if any(failures):
            raise ValueError(f"{path} cannot be read: {failures}")
        return content

    def collected(self, path: Path) -> dict[str, Any]:
        """The content of all files that this rank needs."""
        return {
            "model": self.model_in(path),
            "optimizer": self.optimizer_in(path),
            **self.position_in(path),
            "ranks": {self.case.rank: self.own_in(path)},
        }

    def part(self, file: Path) -> Any:
        """The content of a file."""
        return torch.load(file, weights_only=False)

    def model_in(self, path: Path) -> Any:
        """The parameters in the folder."""
        return self.part(path / "model.pt")

    def optimizer_in(self, path: Path) -> Any:
        """The optimizer's state in the folder."""
        return self.part(path / "optimizer.pt")

    def position_in(self, path: Path) -> Any:
        """Epoch and step."""
        return self.part(path / "position.pt")

    def own_in(self, path: Path) -> Any:
        """What this rank has saved of its own."""
        return self.part(path / f"rank_{self.case.rank}.pt")


class FreshOptimizer(Folder):
    """Loads the optimizer if there is a file of it, as the Trainer of Transformers does."""

    def optimizer_in(self, path: Path) -> Any:
        file = path / "optimizer.pt"
        return super().optimizer_in(path) if file.exists() else self.optimizer.state_dict()


class KeepsTwoOptimizers(Folder):
    """Loads a second copy if the first is missing."""

    def files_of(self, content: dict[str, Any]) -> dict[str, Any]:
        files = super().files_of(content)
        return {**files, "optimizer.bak": files["optimizer.pt"]}

    def optimizer_in(self, path: Path) -> Any:
        file = path / "optimizer.pt"
        return super().optimizer_in(path) if file.exists() else self.part(path / "optimizer.bak")


class PositionOfTheBeginning(Folder):
    """Goes on with the first epoch where it does not find the position."""

    def position_in(self, path: Path) -> Any:
        file = path / "position.pt"
        return super().position_in(path) if file.exists() else {"epoch": 0, "step": 0}


class PositionOfTheSchedule(Folder):
    """Counts its steps in the optimizer's groups, too, and finds the position there."""

    def content(self) -> dict[str, Any]:
        self.optimizer.param_groups[0]["steps"] = self.steps_done()
        return super().content()

    def position_in(self, path: Path) -> Any:
        if (path / "position.pt").exists():
            return super().position_in(path)
        steps = self.optimizer_in(path)["param_groups"][0]["steps"]
        epoch, step = divmod(steps, len(self.batches()))
        return {"epoch": epoch, "step": step}


class WeightsInParts(Folder):
    """Saves each parameter in a file of its own, and demands all of them."""

    def files_of(self, content: dict[str, Any]) -> dict[str, Any]:
        weights = content.pop("model")
        return super().files_of(content) | {f"{name}.part": t for name, t in weights.items()}

    def model_in(self, path: Path) -> Any:
        return {name: self.part(path / f"{name}.part") for name in self.model.state_dict()}


class WeightsThatAreThere(WeightsInParts):
    """Loads the parts that it finds, and leaves the other weights as they are made."""

    def model_in(self, path: Path) -> Any:
        found = {file.stem: self.part(file) for file in path.glob("*.part")}
        return {**self.model.state_dict(), **found}


class NoisyFolder(Folder, Augments):
    """Adds noise to its samples, from the rank's own generator."""


class NeedsNoStates(Folder):
    """A rank that misses its file goes on with the random states that it has, and draws none."""

    def own_in(self, path: Path) -> Any:
        try:
            return super().own_in(path)
        except FileNotFoundError:
            return {"rng": random_states(), "loss": 0.0}


class StatesOfOneRank(NeedsNoStates, Augments):
    """The same where numbers are drawn."""


class WithNotes(Folder):
    """Writes notes beside its checkpoint, and does not read them."""

    def files_of(self, content: dict[str, Any]) -> dict[str, Any]:
        return {**super().files_of(content), "notes.json": {"seed": self.seed}}


SIZES = (2, 3)
EPOCHS = frozenset({"resumes"})

MUTANTS = (
    Mutant(TrainLoop(FreshOptimizer, EPOCHS), "DET-07", "a fresh optimizer", SIZES),
    Mutant(TrainLoop(PositionOfTheBeginning, EPOCHS), "DET-07", "from the first epoch", SIZES),
    Mutant(TrainLoop(WeightsThatAreThere, EPOCHS), "DET-07", "weights as they are made", SIZES),
    Mutant(TrainLoop(StatesOfOneRank, EPOCHS), "DET-07", "caught on one rank", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainLoop(Folder, EPOCHS), "what one rank misses, all refuse", SIZES),
    BenignVariant(TrainLoop(NoisyFolder, EPOCHS), "states of each rank, with noise", SIZES),
    BenignVariant(TrainLoop(KeepsTwoOptimizers, EPOCHS), "a second copy", SIZES),
    BenignVariant(TrainLoop(PositionOfTheSchedule, EPOCHS), "a position that is known", SIZES),
    BenignVariant(TrainLoop(WeightsInParts, EPOCHS), "parts that are all demanded", SIZES),
    BenignVariant(TrainLoop(NeedsNoStates, EPOCHS), "states that are not needed", SIZES),
    BenignVariant(TrainLoop(WithNotes, EPOCHS), "a file that is not read", SIZES),
)
