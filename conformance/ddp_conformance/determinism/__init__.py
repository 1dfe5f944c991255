"""DET, MEM-05 and MEM-06: what a training loop does when it is run again."""
