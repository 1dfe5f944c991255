"""MEM-01 to MEM-04: samples in memory that all ranks and their workers share."""
