"""One attempt at one test: starts ranks, sends them the test, takes their messages, ends them."""
