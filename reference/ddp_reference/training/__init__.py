"""A native training script whose order is right: set up, data, model, device, wrap,
optimizer, compile, train, teardown; with DDP, FSDP1 and FSDP2, for four stages.

Start with ``lifecycle.run``; ``python -m ddp_reference.train`` is the command.
"""

from .config import TrainConfig, parse_config
from .distributed import (
    PeerFailureError,
    World,
    distributed_session,
    setup_distributed,
    teardown_distributed,
)
from .lifecycle import (
    run,
    train_consistency,
    train_diffusion,
    train_operator,
    train_steady_prior,
)
from .loop import Begun, Delivered, EpochReport, Event, Stepped, Summary
from .stages import STAGES, Stage

__all__ = [
    "STAGES",
    "Begun",
    "Delivered",
    "EpochReport",
    "Event",
    "PeerFailureError",
    "Stage",
    "Stepped",
    "Summary",
    "TrainConfig",
    "World",
    "distributed_session",
    "parse_config",
    "run",
    "setup_distributed",
    "teardown_distributed",
    "train_consistency",
    "train_diffusion",
    "train_operator",
    "train_steady_prior",
]
