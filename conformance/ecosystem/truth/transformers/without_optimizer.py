"""Two ranks resume a Trainer's checkpoint without its optimizer: what they end with."""

import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments


class Fitted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, point):
        return {"loss": (self.layer(point[:, None]) - 3 * point[:, None]).square().mean()}


def trained(epochs, resume=None):
    options = TrainingArguments(
        folder, num_train_epochs=epochs, save_strategy="epoch", learning_rate=0.1,
        lr_scheduler_type="constant", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Fitted(), options, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model.layer.weight.item()


data = [{"point": torch.tensor(index / 32)} for index in range(32)]
dist.init_process_group("gloo")
shared = [tempfile.mkdtemp()]
dist.broadcast_object_list(shared)
folder = shared[0]
trained(1)
begun, lacking = Path(folder, "checkpoint-2"), Path(folder, "lacking")
if dist.get_rank() == 0:
    shutil.copytree(begun, lacking)
    (lacking / "optimizer.pt").unlink()
dist.barrier()
right = trained(2, str(begun))
try:
    found = trained(2, str(lacking))
    outcome = f"{found}, and {right} with all files"
except Exception as error:
    found, outcome = right, f"refused with {type(error).__name__}"
if dist.get_rank() == 0:
    print("kept:" if found == right else "broken:", "the weight is", outcome)
dist.destroy_process_group()
