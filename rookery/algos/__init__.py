"""Algorithms: config, loss and policy, one file each."""
