"""Tests of other harnesses on ranks: what such a harness's processes would do, a rank does."""
