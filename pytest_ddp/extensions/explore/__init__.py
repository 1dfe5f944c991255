"""Exploring the orders in which ranks may run: predicted from one run, proved by a late rank."""

EXTENSION = "explore"
