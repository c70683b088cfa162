"""Checks of a machine: what is there, what is missing, and what to do about it."""
