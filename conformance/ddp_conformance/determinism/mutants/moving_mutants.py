"""DET-06: training loops that go on as another run with another number of ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ddp_conformance.determinism.mutants.loop_mutants import Augments
from ddp_conformance.determinism.mutants.part_mutants import ReadsByItself, random_states
from ddp_conformance.determinism.subjects import TrainLoop
from ddp_conformance.framework.mutants import BenignVariant, Mutant


class Moves(ReadsByItself):
    """Saves the bare model, and a position that all ranks share; random states begin anew."""

    @property
    def bare(self) -> nn.Module:
        """The model without DDP."""
        return getattr(self.model, "module", self.model)

    def content(self) -> dict[str, Any]:
        return {**super().content(), "model": self.bare.state_dict()}

    def load(self, content: Any) -> None:
        super().load({**content, "model": self.model.state_dict()})
        self.load_weights(content["model"])

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Load the weights as they were saved."""
        self.bare.load_state_dict(weights)

    def own_of(self, ranks: Any) -> Any:
        if len(ranks) == self.case.world_size:
            return super().own_of(ranks)
        loss = sum(own["loss"] for own in ranks) if self.case.rank == 0 else 0.0
        return {"rng": random_states(), "loss": loss}


class NoisyMoves(Moves, Augments):
    """Adds noise to its samples, another one with another number of ranks."""


class RefusesOtherRanks(Moves):
    """Goes on with as many ranks as have saved, and raises with others."""

    def own_of(self, ranks: Any) -> Any:
        if len(ranks) != self.case.world_size:
            raise ValueError(f"{len(ranks)} ranks have saved, and {self.case.world_size} resume")
        return super().own_of(ranks)


class OrderOfTheRanks(Moves):
    """Each rank shuffles a share of its own, so that the order depends on their number."""

    def order(self) -> list[int]:
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        ws = self.case.world_size
        own = [list(range(rank, self.case.size, ws)) for rank in range(ws)]
        drawn = [torch.randperm(len(share), generator=generator).tolist() for share in own]
        order = [0] * self.case.size
        for rank, places in enumerate(drawn):
            order[rank::ws] = [own[rank][place] for place in places]
        return order


class InBfloat16(Moves):
    """Rounds more than half a percent of each number away, in whatever order ranks add them."""

    def make_model(self) -> nn.Module:
        return super().make_model().bfloat16()

    def inputs(self, index: Tensor) -> Tensor:
        return super().inputs(index).bfloat16()


# ------------------------------------------------------------------ names


class LoadsWhatItKnows(Moves):
    """Saves the names of DDP's wrapper, and loads only names that it has, without a word."""

    def content(self) -> dict[str, Any]:
        return {**super().content(), "model": self.model.state_dict()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict(weights, strict=False)


class DemandsItsNames(LoadsWhatItKnows):
    """Refuses other names."""

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict(weights)


# ------------------------------------------------------------------ positions


class OwnPositions(Moves):
    """Each rank saves how many batches it has read; one that has saved nothing takes rank 0's."""

    resumed_at: tuple[int, int] | None = None
    """Epoch, and batches that were read in it."""

    def own(self) -> dict[str, Any]:
        return {**super().own(), "position": self.step}

    def load(self, content: Any) -> None:
        super().load(content)
        self.resumed_at = self.epoch, self.position_in(content["ranks"])

    def position_in(self, ranks: Any) -> int:
        """The position of this rank."""
        return int(ranks[self.case.rank if self.case.rank < len(ranks) else 0]["position"])

    def batches_left(self) -> list[list[int]]:
        if self.resumed_at is None or self.resumed_at[0] != self.epoch:
            return super().batches_left()
        position = self.resumed_at[1]
        return self.batches()[position:][: len(super().batches_left())]


class PositionOfSavedRanks(OwnPositions):
    """A rank that has saved nothing reads from the beginning of the epoch.

    Megatron-Bridge#5637, torchtitan#811: files of a rank's position, by its number.
    """

    def position_in(self, ranks: Any) -> int:
        return super().position_in(ranks) if self.case.rank < len(ranks) else 0


class PositionInSamples(Moves):
    """Batches of six for each rank, and a position in samples of all."""

    resumed_at: tuple[int, int] = (-1, 0)
    """Epoch, and samples that were delivered in it."""

    def global_batch(self) -> int:
        return 6 * self.case.world_size

    @property
    def before(self) -> int:
        """Samples of this epoch that came before the resumption."""
        return self.resumed_at[1] if self.resumed_at[0] == self.epoch else 0

    def order(self) -> list[int]:
        return super().order()[self.before :]

    def samples_in_step(self) -> int:
        left = self.case.size - self.before - self.step * self.global_batch()
        return min(self.global_batch(), left)

    def content(self) -> dict[str, Any]:
        samples = self.before + self.step * self.global_batch()
        return {**super().content(), "samples": samples}

    def load(self, content: Any) -> None:
        super().load({**content, "step": 0})
        self.resumed_at = self.epoch, self.samples_before(content)

    def samples_before(self, content: Any) -> int:
        """The samples before the position, in the epoch in which it was saved."""
        return int(content["samples"])


class PositionInBatches(PositionInSamples):
    """A position in batches, which are others with other ranks.

    streaming#37.
    """

    def samples_before(self, content: Any) -> int:
        return int(content["step"]) * self.global_batch()


# ------------------------------------------------------------------ moments


class ShardedMoments(Moves):
    """Each rank saves the moments of some parameters, and reads those of all."""

    def content(self) -> dict[str, Any]:
        content = super().content()
        return {**content, "optimizer": {**content["optimizer"], "state": {}}}

    def own(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()["state"]
        ws, rank = self.case.world_size, self.case.rank
        return {**super().own(), "moments": {i: m for i, m in state.items() if i % ws == rank}}

    def load(self, content: Any) -> None:
        state: dict[int, Any] = {}
        for own in self.readable(content["ranks"]):
            state |= own["moments"]
        super().load({**content, "optimizer": {**content["optimizer"], "state": state}})

    def readable(self, ranks: Any) -> Any:
        """What ranks have saved of their own."""
        return ranks


class MomentsOfAsManyRanks(ShardedMoments):
    """Reads as many shards as there are ranks now; the other moments begin anew.

    AReaL#1468.
    """

    def readable(self, ranks: Any) -> Any:
        return ranks[: self.case.world_size]


class AdamMoves(Moves):
    """An optimizer that counts its steps."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01)


class CountsFromZero(AdamMoves):
    """Makes the optimizer's state anew for other ranks, of its moments alone."""

    def load(self, content: Any) -> None:
        super().load(content)
        if len(content["ranks"]) != self.case.world_size:
            for state in self.optimizer.state.values():
                state["step"] = torch.zeros_like(state["step"])


SIZES = (2, 3)
BY_EPOCH = frozenset({"resumes", "resumes_elsewhere"})
BY_STEP = BY_EPOCH | {"resumes_mid_epoch"}
ALL = BY_STEP | {"global_batch"}

MUTANTS = (
    Mutant(TrainLoop(PositionOfSavedRanks, ALL), "DET-06", "a position of rank 0 alone", SIZES),
    Mutant(TrainLoop(PositionInBatches, BY_STEP), "DET-06", "a position in batches", SIZES),
    Mutant(TrainLoop(LoadsWhatItKnows, BY_EPOCH), "DET-06", "names that are not known", SIZES),
    Mutant(TrainLoop(MomentsOfAsManyRanks, ALL), "DET-06", "moments of a shard lost", SIZES),
    Mutant(TrainLoop(CountsFromZero, ALL), "DET-06", "Adam's steps from 0", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainLoop(Moves, ALL), "the loop that the mutants are made of"),
    BenignVariant(TrainLoop(NoisyMoves, BY_STEP), "random states begin anew", SIZES),
    BenignVariant(TrainLoop(RefusesOtherRanks, ALL), "refused by all ranks", SIZES),
    BenignVariant(TrainLoop(OrderOfTheRanks, BY_EPOCH), "an order of so many ranks", SIZES),
    BenignVariant(TrainLoop(InBfloat16, ALL, tolerance=0.1), "rounding that is measured", (2,)),
    BenignVariant(TrainLoop(DemandsItsNames, BY_EPOCH), "other names are refused", SIZES),
    BenignVariant(TrainLoop(OwnPositions, ALL), "a position that is the same on all", SIZES),
    BenignVariant(TrainLoop(PositionInSamples, BY_STEP), "a position in samples", SIZES),
    BenignVariant(TrainLoop(ShardedMoments, ALL), "moments of all shards", SIZES),
    BenignVariant(TrainLoop(AdamMoves, ALL), "Adam's steps go on", SIZES),
)
