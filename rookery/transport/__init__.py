"""How an edge of the program is carried."""
