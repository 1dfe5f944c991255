"""What is restored and cleaned behind a test, and told where it cannot be."""
