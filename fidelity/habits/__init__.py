"""How pytest's users' habits work under each way to run tests on ranks."""
