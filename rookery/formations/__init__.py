"""Formations: one page each, its settings and its program."""
