"""Whether tests written for one process have the same verdict on two ranks."""
