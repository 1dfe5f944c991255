"""MIT1003 saliency: loaders that shard by rank, a trainer, and a small data set for trying them.

``python -m ddp_reference.saliency.make_data DIR`` makes the data set,
``python -m ddp_reference.saliency DIR`` trains on it, alone or under torchrun.
"""

from ddp_reference.saliency.dataset import DatasetError, Item, MIT1003Dataset
from ddp_reference.saliency.mit1003_loader import create_mit1003_dataloaders
from ddp_reference.saliency.samplers import EpochShuffleSampler, ExactDistributedSampler

__all__ = [
    "DatasetError",
    "EpochShuffleSampler",
    "ExactDistributedSampler",
    "Item",
    "MIT1003Dataset",
    "create_mit1003_dataloaders",
]
