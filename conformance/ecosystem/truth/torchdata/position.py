"""Two ranks have read 8 of 16 samples and save; one reader goes on from the state of rank 0."""

import torch.distributed as dist
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

dist.init_process_group("gloo")
data = list(range(16))


def loader_of(readers, reader):
    sampler = StatefulDistributedSampler(data, readers, reader, shuffle=False)
    return StatefulDataLoader(data, batch_size=2, sampler=sampler)


loader = loader_of(2, dist.get_rank())
batches = iter(loader)
own = [int(index) for _ in range(2) for index in next(batches)]
everyone = [None, None]
dist.all_gather_object(everyone, (own, loader.state_dict()))
if dist.get_rank() == 0:
    alone = loader_of(1, 0)
    alone.load_state_dict(everyone[0][1])
    rest = [int(index) for batch in alone for index in batch]
    read = [index for indices, _ in everyone for index in indices]
    again = sorted(set(read) & set(rest))
    print("broken:" if again else "kept:", "samples", again, "are read again")
dist.destroy_process_group()
