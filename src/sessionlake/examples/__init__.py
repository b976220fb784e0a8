"""Example processors, to use or to learn from."""
