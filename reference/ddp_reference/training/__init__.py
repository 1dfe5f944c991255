"""A native training script whose order is right: set up, data, model, device, wrap,
optimizer, compile, train, teardown; with DDP, FSDP1, FSDP2, tensor parallelism and FSDP2 over
it, for four stages.

Start with ``lifecycle.run``; ``python -m ddp_reference.train`` is the command.

Nothing is imported here: DataLoader workers import ``data``, and would else import the
wrappers and the checkpoints with it, for most of a second in each.
"""
