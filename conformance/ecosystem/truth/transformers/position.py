"""Two ranks train an epoch and save; one process resumes, and trains a second one."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from transformers import Trainer, TrainingArguments


class Fitted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.read = []

    def forward(self, index):
        self.read += index.tolist()
        return {"loss": self.layer(index[:, None].float() / 32).square().mean()}


def samples_read(epochs, resume=None):
    options = TrainingArguments(
        folder, num_train_epochs=epochs, save_strategy="epoch",
        use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Fitted(), options, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model.read


data = [{"index": torch.tensor(index)} for index in range(32)]
dist.init_process_group("gloo")
shared = [tempfile.mkdtemp()]
dist.broadcast_object_list(shared)
folder = shared[0]
rank = dist.get_rank()
samples_read(1)
dist.barrier()
dist.destroy_process_group()
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    del os.environ[name]
if rank == 0:
    AcceleratorState._reset_state(reset_partial_state=True)
    read = samples_read(2, str(Path(folder, "checkpoint-2")))
    right = sorted(read) == list(range(32))
    print("kept:" if right else "broken:", f"the second epoch reads {len(read)} samples of 32")
