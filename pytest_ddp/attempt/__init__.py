"""One attempt at one test: ranks brought up, told, heard and ended."""
