"""A value that is always 1, logged with the sizes of the batches: its mean over two ranks."""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader


class Ones(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("one", torch.tensor(1.0), sync_dist=True, batch_size=len(batch))


options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", use_distributed_sampler=False, **options
)
share = range(8) if trainer.global_rank == 0 else range(5)
(report,) = trainer.validate(Ones(), DataLoader(share, batch_size=4), verbose=False)
if dist.get_rank() == 0:
    right = abs(report["one"] - 1.0) < 1e-6
    print("kept:" if right else "broken:", "the mean of ones is", report["one"])
