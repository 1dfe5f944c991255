"""A loss that falls on rank 0 and grows on rank 1: which checkpoint each of them calls the best."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Drifting(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch.float()[:, None]).square().mean()

    def validation_step(self, batch, batch_idx):
        epoch = float(self.current_epoch)
        self.log("loss", torch.tensor(epoch if self.global_rank else 9.0 - epoch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


best = ModelCheckpoint(tempfile.mkdtemp(), monitor="loss", save_top_k=2)
options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, callbacks=[best], **options
)
trainer.fit(Drifting(), DataLoader(range(4)), DataLoader(range(4)))
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, Path(best.best_model_path).name)
if dist.get_rank() == 0:
    print("kept:" if everyone[0] == everyone[1] else "broken:", "the ranks' best are", everyone)
