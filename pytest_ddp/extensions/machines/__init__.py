"""Several machines: who holds them together, and what engines say of them."""
