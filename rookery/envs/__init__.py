"""Environments: one of them, vectors of them, and the one transition format."""
