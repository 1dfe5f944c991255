"""Who acts in a function for the main process alone, before there is a process group."""

import torch.distributed as dist
from mmengine.dist import master_only

acted = []
master_only(acted.append)("a file is written")
dist.init_process_group("gloo")
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, len(acted))
if dist.get_rank() == 0:
    print("kept:" if sum(everyone) == 1 else "broken:", "times that the ranks acted:", everyone)
dist.destroy_process_group()
