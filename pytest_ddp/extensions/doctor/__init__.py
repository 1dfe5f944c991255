"""Reports which ddp tests a machine can run: a line for each check, and the fix of a problem."""
