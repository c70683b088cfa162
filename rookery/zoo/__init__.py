"""Trained agents that come with Rookery, one file each, and how to make such files."""
