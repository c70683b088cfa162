"""The live view of ``rookery train`` and ``rookery resume`` on a terminal."""
