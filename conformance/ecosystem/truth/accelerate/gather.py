"""Three samples on two ranks, gathered from a prepared loader."""

from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(DataLoader(range(3)))
gathered = [int(index) for batch in loader for index in accelerator.gather(batch)]
if accelerator.is_main_process:
    once = sorted(gathered) == [0, 1, 2]
    print("kept:" if once else "broken:", "gathered", gathered, "of 3 samples")
