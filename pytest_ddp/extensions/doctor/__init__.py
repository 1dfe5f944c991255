"""What of ddp tests a machine can run, a line each, with what to do where something is wrong."""
