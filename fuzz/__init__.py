"""Differential tests: random models against oracles that share no code with the library."""
