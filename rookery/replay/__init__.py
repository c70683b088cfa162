"""What actors did, kept to be learned from more than once."""
