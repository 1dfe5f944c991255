"""What plugs into the core: a folder each, found by :mod:`pytest_ddp.extending`."""
