"""Which habits of pytest's users work under which way to run tests on ranks."""
