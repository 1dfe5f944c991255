"""The processes of host and ranks: start, messages, end, and the GPUs that they may use."""
