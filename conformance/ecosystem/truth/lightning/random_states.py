"""Two ranks train two epochs, at once and in two fits: what they draw in the second."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader


class Fitted(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.drawn = {}

    def training_step(self, batch):
        self.drawn.setdefault(self.current_epoch, []).append(torch.rand(1).item())
        return self.layer(batch.float()[:, None]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


def fitted(epochs, resume=None):
    seed_everything(0)
    module = Fitted()
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(range(4)), ckpt_path=resume, weights_only=False)
    return trainer, module.drawn


_, whole = fitted(2)
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
path = Path(folder[0]) / "saved.ckpt"
trainer, _ = fitted(1)
trainer.save_checkpoint(path)
_, rest = fitted(2, path)
if dist.get_rank() == 0:
    print("kept:" if rest[1] == whole[1] else "broken:", f"{whole[1]} at once, {rest[1]} resumed")
