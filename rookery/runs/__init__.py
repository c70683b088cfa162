"""A run is its directory: configuration, status, metrics and checkpoints, written atomically."""
