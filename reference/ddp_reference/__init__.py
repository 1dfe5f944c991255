"""Reference implementations of data-parallel training parts, written to be used and read.

Each subpackage is one system that keeps every guarantee of the conformance suite
that applies to it: see ``conformance/SPEC.md``.
"""
