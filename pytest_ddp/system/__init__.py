"""The operating system and the standard library, as they are before any test patches them."""
