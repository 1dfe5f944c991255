"""Who acts under rank_zero_only before there is a Trainer, on two machines of Lightning's launcher.

It sets NODE_RANK and LOCAL_RANK and no RANK, and Lightning takes the local rank for the rank.
"""

import os
import tempfile

import torch.distributed as dist

rank = os.environ.pop("RANK")
os.environ.update(NODE_RANK=rank, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")

from lightning.pytorch.utilities import rank_zero_only  # noqa: E402 - looks at the variables

acted = []
rank_zero_only(acted.append)("a file is written")
store = dist.FileStore(f"{tempfile.gettempdir()}/acted-{os.environ['MASTER_PORT']}", 2)
store.set(rank, str(len(acted)))
everyone = [int(store.get(other)) for other in "01"]
if rank == "0":
    print("kept:" if sum(everyone) == 1 else "broken:", "times that the ranks acted:", everyone)
