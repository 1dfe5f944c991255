"""MEM-01 to MEM-04 and MEM-07: samples in memory that all ranks and their workers share."""
