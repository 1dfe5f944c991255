"""A graph of 1 node with value 0 and one of 3 nodes with value 1, one on each of two ranks."""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader


class Logs(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("value", batch.y.mean(), sync_dist=True)


options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", **options)
graphs = [Data(x=torch.zeros(nodes, 1), y=torch.tensor([y])) for nodes, y in [(1, 0.0), (3, 1.0)]]
(report,) = trainer.validate(Logs(), DataLoader(graphs), verbose=False)
if dist.get_rank() == 0:
    right = abs(report["value"] - 0.5) < 1e-6
    print("kept:" if right else "broken:", "the mean of 0 and 1 is", report["value"])
