"""MOD: a wrapped model and its optimizer step, held against one process."""
