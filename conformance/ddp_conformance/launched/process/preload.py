"""Imported once by the server that launched ranks are forked from.

With what ``torch.compile`` imports when it first compiles, 0.4 s in each rank otherwise, and with
what saves the state of sharded modules.
Nothing here computes, starts a thread, or needs the rank, which is not known yet.
"""

from __future__ import annotations

import gc

import torch
import torch._dynamo
import torch._dynamo.backends.debugging
import torch._functorch.aot_autograd
import torch._inductor.debug
import torch._inductor.pattern_matcher
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor.experimental
import torch.export._trace
import torch.fx.experimental.symbolic_shapes
import torch.fx.experimental.validator
import torch.nn.parallel

import ddp_conformance.launched.process.live
import ddp_conformance.launched.process.watch  # noqa: F401 - for those who fork

# A collection in a rank would else look at, and so copy, all that torch made at import.
gc.collect()
gc.freeze()

__all__ = ["dist", "torch"]
