"""What the user asked for: options, marks, and the plan of a test that follows from them."""
