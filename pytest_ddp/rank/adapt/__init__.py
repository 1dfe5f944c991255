"""Where pytest is bent to run inside a rank."""
