"""MET: what is reported of all ranks' samples."""
