"""Probes ranks, proves deadlocks from their answers, and compares collectives between ranks."""
