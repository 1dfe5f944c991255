"""DET-08: training loops in which saving a checkpoint changes what is trained on."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ddp_conformance.determinism.mutants.part_mutants import ReadsByItself
from ddp_conformance.determinism.subjects import Leg, TrainLoop, Watch
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant


class StateByTorch(ReadsByItself):
    """Saves the optimizer by torch's function, which gives it a state by a step where it has none.

    pytorch#164929, torchtitan#4382: the step is made with a rate of 0, and Adam counts it.
    """

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01)

    def content(self) -> dict[str, Any]:
        state = get_optimizer_state_dict(self.model, self.optimizer)
        return {**super().content(), "optimizer": copy.deepcopy(state)}

    def load(self, content: Any) -> None:
        plain = self.optimizer.state_dict()
        super().load({**content, "optimizer": plain})
        set_optimizer_state_dict(self.model, self.optimizer, content["optimizer"])


class StateByTorchLater(StateByTorch):
    """Saves no state of the optimizer before it has one."""

    def content(self) -> dict[str, Any]:
        return super().content() if self.optimizer.state else ReadsByItself.content(self)


class MomentumByTorch(StateByTorch):
    """A loop with an optimizer that counts no steps, and to which a momentum of 0 is as good as
    none.
    """

    def make_optimizer(self) -> torch.optim.Optimizer:
        return ReadsByItself.make_optimizer(self)


class CastsToSave(ReadsByItself):
    """Exports its weights in half the bytes, and trains on from those."""

    def content(self) -> dict[str, Any]:
        content = copy.deepcopy(super().content())
        content["export"] = copy.deepcopy(self.model.half().state_dict())
        self.model.float()
        return content


class CastsACopy(ReadsByItself):
    """Exports a copy of its weights."""

    def content(self) -> dict[str, Any]:
        weights = self.model.state_dict()
        export = {name: tensor.half() for name, tensor in weights.items()}
        return {**super().content(), "export": export}


class DropsOut(ReadsByItself):
    """A model that is another one in evaluation mode."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(super().make_model(), nn.Dropout(0.2))


class LeavesEvaluationMode(DropsOut):
    """Evaluates what it saves, and trains on without dropout."""

    def content(self) -> dict[str, Any]:
        content = super().content()
        self.model.eval()
        with torch.no_grad():
            content["score"] = self.losses(torch.arange(4)).mean().item()
        return content


class EvaluatesWhatItSaves(LeavesEvaluationMode):
    """Goes back to training mode."""

    def content(self) -> dict[str, Any]:
        content = super().content()
        self.model.train()
        return content


class KeepsTheAverage(ReadsByItself):
    """Saves moving averages of its weights, which it copies into the model for it.

    waifu-diffusion#31: it trains on from the averages.
    """

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        self.average: dict[str, Tensor] = {}
        super().__init__(case, leg, watch)

    def update(self, index: Tensor) -> None:
        self.average = self.average or copy.deepcopy(self.model.state_dict())
        super().update(index)
        for name, tensor in self.model.state_dict().items():
            self.average[name].lerp_(tensor, 0.5)

    def content(self) -> dict[str, Any]:
        content = copy.deepcopy(super().content())
        self.model.load_state_dict(self.average or content["model"])
        content["average"] = copy.deepcopy(self.model.state_dict())
        return content

    def load(self, content: Any) -> None:
        super().load(content)
        self.average = content["average"]


class SwapsTheAverage(KeepsTheAverage):
    """Copies the weights back."""

    def content(self) -> dict[str, Any]:
        content = super().content()
        self.model.load_state_dict(content["model"])
        return content


class KeepsTorchsAverage(ReadsByItself):
    """Copies into the model the averages of torch, which are the weights after the first step."""

    def wrap(self, model: nn.Module) -> nn.Module:
        wrapped = super().wrap(model)
        average: Any = get_ema_multi_avg_fn(0.5)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(wrapped, multi_avg_fn=average)
        return wrapped

    def update(self, index: Tensor) -> None:
        super().update(index)
        self.average.update_parameters(self.model)

    def content(self) -> dict[str, Any]:
        content = copy.deepcopy(super().content())
        if self.average.n_averaged:
            self.model.load_state_dict(self.average.module.state_dict())
        return content


class SavesInAThread(ReadsByItself):
    """Writes beside the training, and waits for that at the end."""

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        self.threads: list[threading.Thread] = []
        super().__init__(case, leg, watch)
        for thread in self.threads:
            thread.join()

    def save(self, path: Path) -> None:
        content = copy.deepcopy(self.content())
        if self.case.rank == 0:
            self.threads.append(threading.Thread(target=torch.save, args=(content, path)))
            self.threads[-1].start()


SIZES = (2, 3)
EPOCHS = frozenset({"resumes"})
ALL = frozenset({"resumes", "resumes_mid_epoch", "global_batch"})

MUTANTS = (
    Mutant(TrainLoop(StateByTorch, ALL), "DET-08", "a step to have a state to save", SIZES),
    Mutant(TrainLoop(CastsToSave, ALL), "DET-08", "weights cast, and not cast back", SIZES),
    Mutant(TrainLoop(LeavesEvaluationMode, EPOCHS), "DET-08", "evaluation mode for good", SIZES),
    Mutant(TrainLoop(KeepsTheAverage, ALL), "DET-08", "averages not swapped back", SIZES),
    Mutant(TrainLoop(KeepsTorchsAverage, EPOCHS), "DET-08", "averages of torch for good", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainLoop(StateByTorchLater, ALL), "a state is saved once there is one", SIZES),
    BenignVariant(TrainLoop(MomentumByTorch, ALL), "a step that leaves a momentum of 0", SIZES),
    BenignVariant(TrainLoop(CastsACopy, ALL), "a copy is cast", SIZES),
    BenignVariant(TrainLoop(EvaluatesWhatItSaves, EPOCHS), "evaluation mode for a while", SIZES),
    BenignVariant(TrainLoop(SwapsTheAverage, ALL), "averages swapped in and back", SIZES),
    BenignVariant(TrainLoop(SavesInAThread, ALL), "files of a thread that is joined", SIZES),
)
