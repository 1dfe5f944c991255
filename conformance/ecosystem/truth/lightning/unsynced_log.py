"""Rank 0 logs zeros and rank 1 ones: what each of them reports as the mean."""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader


class Ranks(LightningModule):
    def validation_step(self, batch, batch_idx):
        self.log("rank", torch.tensor(float(self.global_rank)), batch_size=len(batch))


options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", **options)
(report,) = trainer.validate(Ranks(), DataLoader(range(4)), verbose=False)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, report["rank"])
if dist.get_rank() == 0:
    print("kept:" if everyone == [0.5, 0.5] else "broken:", "of 0 and 1 the ranks report", everyone)
