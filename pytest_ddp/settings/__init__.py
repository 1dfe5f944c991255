"""Options, marks, and the plan of a test that follows from them."""
