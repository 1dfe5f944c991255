"""Prints the result files of a pytest session as Markdown, for the page of a CI job."""
