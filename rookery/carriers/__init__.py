"""What carries the edges of a program: the only places that know a link."""
