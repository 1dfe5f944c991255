"""The process groups of a rank: built, counted, given up, and what is asked of them."""
