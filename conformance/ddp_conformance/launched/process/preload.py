"""Imported once by the server that launched ranks are forked from.

With what ``torch.compile`` imports when it first compiles, 0.4 s in each rank otherwise, and with
what saves the state of sharded modules.
Nothing here computes, starts a thread, or needs the rank, which is not known yet.
"""

from __future__ import annotations

from importlib import import_module

from pytest_ddp.rank.startup.preload import without_collector

MODULES = (
    "torch",
    "torch._dynamo",
    "torch._dynamo.backends.debugging",
    "torch._functorch.aot_autograd",
    "torch._inductor.debug",
    "torch._inductor.pattern_matcher",
    "torch.distributed",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.validator",
    "torch.nn.parallel",
    "ddp_conformance.launched.process.live",
    "ddp_conformance.launched.process.watch",
)

# The collector would take a fifth of the time; and in a rank it would look at, and so copy, all
# that torch made at import.
with without_collector():
    for module in MODULES:
        import_module(module)
