"""Which settings make the most steps a second on this machine."""
