"""CBK: what callbacks call, decide, and do when one of them fails."""
