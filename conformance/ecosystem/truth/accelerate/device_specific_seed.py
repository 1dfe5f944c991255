"""Eight samples in a random order on two ranks, which Accelerate has seeded differently."""

import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

config = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, dataloader_config=config)
set_seed(0, device_specific=True)
loader = accelerator.prepare(DataLoader(range(8), shuffle=True))
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, [int(index) for index in loader])
if accelerator.is_main_process:
    once = sorted(everyone[0] + everyone[1]) == list(range(8))
    print("kept:" if once else "broken:", "ranks got", everyone, "of 8 samples")
dist.destroy_process_group()
