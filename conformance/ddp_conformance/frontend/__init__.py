"""The user interface: pytest, the command line, and reports."""
