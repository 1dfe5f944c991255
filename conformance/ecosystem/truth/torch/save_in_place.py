"""A disk that is full after 64 KiB: what rank 1 finds where rank 0 saves."""

import resource
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
path = Path(folder[0]) / "model.pt"
if dist.get_rank() == 0:
    torch.save({"step": 1, "weights": torch.zeros(100_000)}, path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    with suppress(Exception):
        torch.save({"step": 2, "weights": torch.zeros(100_000)}, path)
dist.barrier()
if dist.get_rank() == 1:
    try:
        print("kept: rank 1 loads the state of step", torch.load(path)["step"])
    except Exception as error:
        print("broken: rank 1 loads neither step 1 nor step 2:", str(error).partition("\n")[0])
dist.destroy_process_group()
