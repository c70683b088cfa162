"""Engines carry programs: inline in one thread, local on all cores."""
