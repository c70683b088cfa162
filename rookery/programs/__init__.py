"""The program: a graph of roles joined by typed ports, built before any process exists."""
