"""Which faults tests with worlds find, and which right programs they leave alone."""
