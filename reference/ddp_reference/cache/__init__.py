"""Precomputed samples in memory that all ranks and all their DataLoader workers share.

``LatentCache`` maps a checked file; ``open_on_all_ranks`` builds it once and opens it on
every rank; ``python -m ddp_reference.cache check|repair|build`` is the command.
"""

from .format import CacheError, Manifest, Problem, write
from .latent_cache import SHARED_MEMORY, LatentCache
from .publish import Recipe, build, open_on_all_ranks

__all__ = [
    "SHARED_MEMORY",
    "CacheError",
    "LatentCache",
    "Manifest",
    "Problem",
    "Recipe",
    "build",
    "open_on_all_ranks",
    "write",
]
