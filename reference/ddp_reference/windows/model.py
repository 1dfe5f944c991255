"""A small graph network, and metrics that are right on any number of ranks."""

from __future__ import annotations

from typing import cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GraphConv, global_mean_pool
from torchmetrics import MeanMetric, MeanSquaredError


class WindowGNN(LightningModule):
    """Predict the target of each graph; mean squared error, Adam.

    Metrics pool (sum, count) over ranks in float64, one count for each graph. The plain
    ``self.log(..., sync_dist=True)`` would weight by nodes for PyG batches, and its weights
    are rounded down when the total is not a multiple of the number of ranks.

    The model has no buffers, hence no batch normalisation: DDP broadcasts buffers in each
    forward pass, in evaluation too, and ranks with different numbers of validation batches
    would wait for each other for ever.

    Args:
        features: columns of ``x``.
        hidden: width of the layers.
        lr: learning rate.
    """

    def __init__(self, features: int, hidden: int = 32, lr: float = 5e-3) -> None:
        super().__init__()
        self.lr = lr
        self.conv1 = GraphConv(features, hidden)
        self.conv2 = GraphConv(hidden, hidden)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.train_loss = MeanMetric().set_dtype(torch.float64)
        self.val_loss = MeanMetric().set_dtype(torch.float64)
        self.val_rmse = MeanSquaredError(squared=False).set_dtype(torch.float64)

    def forward(self, batch: Batch) -> Tensor:
        """Predictions, shape (graphs,)."""
        hidden = torch.relu(self.conv1(batch.x, batch.edge_index))
        hidden = torch.relu(self.conv2(hidden, batch.edge_index))
        pooled = global_mean_pool(hidden, batch.batch, size=batch.num_graphs)
        return cast(Tensor, self.head(pooled)).squeeze(1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of this rank's batch; DDP averages the gradients."""
        losses = torch.square(self(batch) - batch.y)
        self.train_loss.update(losses.detach()[~batch.repeated].double())
        self.log("train_loss", self.train_loss, on_step=False, on_epoch=True)
        loss = losses.mean()
        # This rank's own value, for the progress bar alone: no logger gets it.
        self.log("loss", loss.detach(), prog_bar=True, logger=False, batch_size=batch.num_graphs)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add this rank's graphs to the metrics."""
        counted = ~batch.repeated
        predicted, target = self(batch)[counted].double(), batch.y[counted].double()
        self.val_loss.update(torch.square(predicted - target))
        self.val_rmse.update(predicted, target)

    def on_validation_epoch_end(self) -> None:
        """Report the metrics. Here and not in the step: every rank must take part."""
        self.log("val_loss", self.val_loss, prog_bar=True)
        self.log("val_rmse", self.val_rmse)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam over all parameters."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)
