"""Three samples on two ranks: the Trainer validates four."""

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader


class Counting(LightningModule):
    def __init__(self):
        super().__init__()
        self.seen = []

    def validation_step(self, batch, batch_idx):
        self.seen += batch.tolist()


module = Counting()
options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", **options)
trainer.validate(module, DataLoader(range(3)), verbose=False)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, module.seen)
if dist.get_rank() == 0:
    once = sorted(everyone[0] + everyone[1]) == [0, 1, 2]
    print("kept:" if once else "broken:", "ranks validated", everyone, "of 3 samples")
