"""Programs with races that are known, legal programs, and what finds the races."""
