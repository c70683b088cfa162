"""Modules only: torsos turn observations into features, cores remember, heads decide."""
