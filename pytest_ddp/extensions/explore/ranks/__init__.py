"""What runs in ranks: the points that threads pass, and holds at them."""
