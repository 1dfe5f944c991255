"""The faults that tests with worlds find, and the right programs that they leave alone."""
