"""DET-01 to DET-05, MEM-05 and MEM-06: training loops with one defect each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_conformance.determinism.mutants.part_mutants import GLOBAL_BATCH, Loop, restore
from ddp_conformance.determinism.subjects import Leg, TrainLoop, Watch
from ddp_conformance.framework.case import Case, IndexDataset
from ddp_conformance.framework.mutants import BenignVariant, Mutant


class SeedByTime(Loop):
    """The clock of rank 0: the same on all ranks, and another in each run."""

    def common_seed(self) -> int:
        seed = [time.time_ns() % 10_000_019]
        if dist.is_initialized():
            dist.broadcast_object_list(seed, src=0)
        return seed[0]


class UnseededModel(Loop):
    """Initial parameters from a generator that is not seeded; DDP sends rank 0's to all ranks."""

    def make_model(self) -> nn.Module:
        return nn.Linear(2, 1)


class ForgetsEpoch(Loop):
    """Goes on with the order of the first epoch."""

    def load(self, content: Any) -> None:
        super().load(content)
        self.resumed_at = self.epoch

    def order(self) -> list[int]:
        epoch = self.epoch
        self.epoch -= getattr(self, "resumed_at", 0)
        order = super().order()
        self.epoch = epoch
        return order


class ForgetsMomentum(Loop):
    """Restores the model and not the optimizer."""

    def load(self, content: Any) -> None:
        fresh = self.optimizer.state_dict()
        super().load(content)
        self.optimizer.load_state_dict(fresh)


class RoundsMomentum(Loop):
    """Saves the optimizer's state in half the bytes."""

    def save(self, path: Path) -> None:
        for state in self.optimizer.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].half().float()
        super().save(path)


class Augments(Loop):
    """Adds noise to its samples, from the rank's own generator."""

    def losses(self, index: Tensor) -> Tensor:
        noise = 0.1 * torch.rand(len(index))
        return super().losses(index) * (1 + noise)


class DrawsTheSameNoise(Augments):
    """Seeds its generators again instead of restoring their states."""

    def load(self, content: Any) -> None:
        super().load(content)
        self.seed_rank()


class RepeatsTheEpoch(Loop):
    """Goes on at the beginning of the epoch that was interrupted."""

    def load(self, content: Any) -> None:
        super().load({**content, "step": 0})


class LagsAfterwards(Loop):
    """Right in the epoch in which it is resumed; later epochs have the order of the one before."""

    def load(self, content: Any) -> None:
        super().load(content)
        self.resumed_at = self.epoch

    def order(self) -> list[int]:
        epoch = self.epoch
        self.epoch -= epoch > getattr(self, "resumed_at", epoch)
        order = super().order()
        self.epoch = epoch
        return order


class SkipsInEveryEpoch(Loop):
    """Skips the samples that were trained on before the resumption in all later epochs, too."""

    def load(self, content: Any) -> None:
        super().load(content)
        self.skipped = self.step

    def loader(self) -> Iterator[Any]:
        self.step = max(self.step, getattr(self, "skipped", 0))
        return super().loader()


class LosesTheBatchesAhead(Loop):
    """Counts the batches that workers have fetched as batches that were trained on."""

    def load(self, content: Any) -> None:
        ahead = self.case.num_workers if content["step"] else 0
        super().load({**content, "step": content["step"] + ahead})


class StatesOfRankZero(Loop):
    """One random state in the checkpoint, for all."""

    def load(self, content: Any) -> None:
        super().load(content)
        restore(content["ranks"][0]["rng"])


class StateOfTorchAlone(Loop):
    """python's and NumPy's states are forgotten."""

    def load(self, content: Any) -> None:
        super().load(content)
        own = torch.get_rng_state()
        self.seed_rank()
        torch.set_rng_state(own)


class Unsharded(Loop):
    """Every rank goes through all samples, in batches of its share."""

    def batches(self) -> list[list[int]]:
        order, local = self.order(), GLOBAL_BATCH // self.case.world_size
        return [order[start : start + local] for start in range(0, len(order), local)]


class LossOfTheRank(Loop):
    """Reports the mean over its own samples."""

    def mean_loss(self) -> float:
        return self.loss * self.case.world_size / self.case.size


class OneSeedForAll(Loop):
    """``seed_everything(7)`` on every rank: all draw the same augmentation."""

    def seed_rank(self) -> None:
        self.seed_all(SEED_FOR_ALL)


class RankInEverySeed(Loop):
    """``seed_everything(7 + rank)``: all ranks have another order."""

    def common_seed(self) -> int:
        return SEED_FOR_ALL + self.case.rank


class WeightedLoop(Loop):
    """Draws with replacement, once for all ranks."""

    def order(self) -> list[int]:
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        weights = torch.arange(1.0, self.case.size + 1)
        return torch.multinomial(weights, self.case.size, True, generator=generator).tolist()


class WeightedLoopOnEach(WeightedLoop):
    """Every rank takes the beginning of the draw."""

    def batches(self) -> list[list[int]]:
        order, local = self.order(), GLOBAL_BATCH // self.case.world_size
        starts = range(0, self.case.size // self.case.world_size, local)
        return [order[start : start + local] for start in starts]


class FullBatches(Loop):
    """Repeats samples until all batches are full."""

    def order(self) -> list[int]:
        order = super().order()
        return [*order, *order[: -len(order) % GLOBAL_BATCH]]


class EncodedDataset(IndexDataset):
    """A data set that encodes its samples."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.encoder: nn.Module = nn.Linear(2, 1)


class TrainsTheDatasetsEncoder(Loop):
    """The model is the data set's encoder."""

    def make_dataset(self) -> IndexDataset:
        torch.manual_seed(self.seed)
        return EncodedDataset(self.case.size)

    def make_model(self) -> nn.Module:
        assert isinstance(self.dataset, EncodedDataset)
        return self.dataset.encoder


class FreshEncoder(TrainsTheDatasetsEncoder):
    """A model of its own beside it, with the same values."""

    def make_model(self) -> nn.Module:
        model = nn.Linear(2, 1)
        model.load_state_dict(super().make_model().state_dict())
        return model


class MovesTheDatasetsEncoder(FreshEncoder):
    """Converted in place to where the model is, for one use."""

    def mean_loss(self) -> float:
        assert isinstance(self.dataset, EncodedDataset)
        self.dataset.encoder.double()
        return super().mean_loss()


class FrozenDataset(EncodedDataset):
    """Encodes in evaluation mode, which it chooses itself."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.encoder = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
        self.encoder.requires_grad_(False).eval()


class WithFrozenEncoder(FreshEncoder):
    """A model of its own beside a data set that encodes."""

    def make_dataset(self) -> IndexDataset:
        torch.manual_seed(self.seed)
        return FrozenDataset(self.case.size)

    def make_model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Linear(2, 1)

    @property
    def encoder(self) -> nn.Module:
        """The data set's."""
        assert isinstance(self.dataset, EncodedDataset)
        return self.dataset.encoder

    def train(self) -> None:
        for module in (self.model, self.encoder):
            self.look_at(module)
        super().train()

    def look_at(self, module: nn.Module) -> None:
        """Nothing but that."""


class TrainsInItsMode(WithFrozenEncoder):
    """Calls ``train()`` of all modules before the first sample is read."""

    def look_at(self, module: nn.Module) -> None:
        module.train()


class WithLaterMode(WithFrozenEncoder):
    """In training mode once an epoch, for the loss, and back again."""

    def mean_loss(self) -> float:
        self.encoder.train()
        loss = super().mean_loss()
        self.encoder.eval()
        return loss


class ThawsAtTheEnd(WithFrozenEncoder):
    """Trains the encoder from the end of an epoch on, while the data set still encodes with it."""

    def mean_loss(self) -> float:
        self.encoder.requires_grad_(True)
        return super().mean_loss()


class HooksTheEncoder(WithFrozenEncoder):
    """Registers a hook on the encoder, to plot its outputs."""

    def mean_loss(self) -> float:
        self.encoder.register_forward_hook(lambda *_: None)
        return super().mean_loss()


class WhenFirstRead(WithFrozenEncoder):
    """Looks at the encoder when the first samples have been read, before the first step."""

    def losses(self, index: Tensor) -> Tensor:
        if self.epoch == self.step == 0:
            self.look_closely(self.encoder)
        return super().losses(index)

    def look_closely(self, module: nn.Module) -> None:
        """Nothing but that."""


class ThawsWhenFirstRead(WhenFirstRead):
    """Trains the encoder from the first samples on."""

    def look_closely(self, module: nn.Module) -> None:
        module.requires_grad_(True)


class HooksWhenFirstRead(WhenFirstRead):
    """Registers a hook on it, which changes what the data set encodes next."""

    def look_closely(self, module: nn.Module) -> None:
        module.register_forward_hook(lambda *seen: 2 * seen[-1])


def _twice(gradient: Tensor) -> Tensor:
    return 2 * gradient


class HooksAParameter(WhenFirstRead):
    """Registers a hook on a parameter that is to be trained later."""

    def make_dataset(self) -> IndexDataset:
        dataset = super().make_dataset()
        assert isinstance(dataset, EncodedDataset)
        dataset.encoder.requires_grad_(True)
        return dataset

    def look_closely(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.register_hook(_twice)  # type: ignore[no-untyped-call]


class HooksBeforeReading(HooksAParameter):
    """The same before any sample is read: nothing changes while there are samples."""

    def look_at(self, module: nn.Module) -> None:
        if module is self.encoder:
            super().look_closely(module)

    def look_closely(self, module: nn.Module) -> None:
        """A hook that is removed again."""
        for parameter in module.parameters():
            parameter.register_hook(_twice).remove()  # type: ignore[no-untyped-call]


class LookedAtForAWhile(WithFrozenEncoder):
    """A hook that is removed again, and a mode that the loop has chosen before the data set."""

    def mean_loss(self) -> float:
        handle = self.encoder.register_forward_hook(lambda *_: None)
        handle.remove()
        return super().mean_loss()


class LoopChoosesTheMode(FreshEncoder):
    """A data set that does not set its encoder's mode: the loop does."""

    def make_dataset(self) -> IndexDataset:
        dataset = super().make_dataset()
        assert isinstance(dataset, EncodedDataset)
        dataset.encoder.eval().requires_grad_(False)
        return dataset


class OnItsOwnGpu(Loop):
    """Trains on the GPU of the rank, which the plugin has made the current one."""

    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())


class OnTheFirstGpu(OnItsOwnGpu):
    """And every rank computes something on GPU 0."""

    def losses(self, index: Tensor) -> Tensor:
        torch.ones(1 << 20, device="cuda:0")
        return super().losses(index)


class Unwrapped(Loop):
    """Gradients averaged by hand: as many collectives, and no DDP."""

    def wrap(self, model: nn.Module) -> nn.Module:
        if dist.is_initialized():
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]
        return model


def _average(parameter: Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


class EndsItsGroup(Unwrapped):
    """Ends the process group when it has trained, as a program does."""

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        super().__init__(case, leg, watch)
        if dist.is_initialized():
            dist.destroy_process_group()


SEED_FOR_ALL = 7
TWO = (2,)
ALL = frozenset({"resumes", "resumes_mid_epoch", "global_batch"})
EPOCHS = frozenset({"resumes"})

MUTANTS = (
    Mutant(TrainLoop(SeedByTime), "DET-01", "seed from the clock", (1, 2)),
    Mutant(TrainLoop(UnseededModel), "DET-01", "parameters without a seed", (1, 2)),
    Mutant(TrainLoop(ForgetsEpoch, EPOCHS), "DET-02", "order of epoch 0 again", (1, 2)),
    Mutant(TrainLoop(ForgetsMomentum, EPOCHS), "DET-02", "optimizer not restored", (2, 3)),
    Mutant(TrainLoop(RoundsMomentum, EPOCHS), "DET-02", "optimizer saved as float16", (2, 3)),
    Mutant(TrainLoop(DrawsTheSameNoise, EPOCHS), "DET-02", "noise of the beginning again", (2, 3)),
    Mutant(TrainLoop(RepeatsTheEpoch, ALL), "DET-02", "epoch from its beginning", (2, 3)),
    Mutant(TrainLoop(LagsAfterwards, EPOCHS), "DET-02", "an epoch behind after the next", TWO),
    Mutant(TrainLoop(SkipsInEveryEpoch, ALL), "DET-02", "skips in all later epochs", TWO),
    Mutant(TrainLoop(LosesTheBatchesAhead, ALL), "DET-02", "skips with workers", (2, 3)),
    Mutant(TrainLoop(StatesOfRankZero, ALL), "DET-03", "rank 0's states for all", TWO),
    Mutant(TrainLoop(StateOfTorchAlone, ALL), "DET-03", "torch's state alone", (1, 2)),
    Mutant(TrainLoop(Unsharded, ALL), "DET-04", "every rank trains on all", (2, 4)),
    Mutant(TrainLoop(LossOfTheRank, ALL), "DET-04", "loss of one rank", TWO),
    Mutant(TrainLoop(OneSeedForAll), "DET-05", "one seed for all", TWO),
    Mutant(TrainLoop(RankInEverySeed), "DET-05", "rank in every seed", TWO),
    Mutant(
        TrainLoop(WeightedLoopOnEach, {"replacement"}, "LoopOfSameDraws"),
        "DET-05",
        "the same draws on every rank",
        (2, 4),
    ),
    Mutant(TrainLoop(TrainsTheDatasetsEncoder), "MEM-06", "trains the data set's", (1, 2)),
    Mutant(TrainLoop(MovesTheDatasetsEncoder), "MEM-06", "converts the data set's", (1, 2)),
    Mutant(TrainLoop(TrainsInItsMode), "MEM-06", "train() of the data set's", (1, 2)),
    Mutant(TrainLoop(ThawsAtTheEnd), "MEM-06", "requires_grad of the data set's", (1, 2)),
    Mutant(TrainLoop(HooksTheEncoder), "MEM-06", "a hook on the data set's", (1, 2)),
    Mutant(TrainLoop(ThawsWhenFirstRead), "MEM-06", "requires_grad before the first step", TWO),
    Mutant(TrainLoop(HooksWhenFirstRead), "MEM-06", "a hook before the first step", TWO),
    Mutant(TrainLoop(HooksAParameter), "MEM-06", "a hook on a parameter of the data set's", TWO),
    Mutant(TrainLoop(OnTheFirstGpu, {"gpu"}), "MEM-05", "something on GPU 0", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainLoop(Loop, ALL), "the loop that the mutants are made of", (1, 2, 4)),
    BenignVariant(TrainLoop(Augments, EPOCHS), "noise that is restored", (2, 3)),
    BenignVariant(
        TrainLoop(WeightedLoop, EPOCHS | {"replacement"}, "LoopOfDraws"),
        "draws with replacement that ranks share",
        (2, 4),
    ),
    BenignVariant(
        TrainLoop(FullBatches, EPOCHS | {"pads"}, batch_size=GLOBAL_BATCH // 2),
        "batches that are made full",
        TWO,
    ),
    BenignVariant(TrainLoop(Unwrapped, ALL), "no DDP, gradients averaged by hand", (2, 3)),
    BenignVariant(TrainLoop(EndsItsGroup, ALL), "a loop that ends its group", TWO),
    BenignVariant(TrainLoop(FreshEncoder), "a data set with an encoder like the model"),
    BenignVariant(TrainLoop(WithLaterMode), "another mode for a while"),
    BenignVariant(TrainLoop(LookedAtForAWhile), "a hook for a while"),
    BenignVariant(
        TrainLoop(HooksBeforeReading), "a hook on a parameter, before a sample is read", TWO
    ),
    BenignVariant(TrainLoop(LoopChoosesTheMode), "a mode that the loop chooses first"),
    BenignVariant(TrainLoop(OnItsOwnGpu, {"gpu"}), "a GPU for each rank"),
)
