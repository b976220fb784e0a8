"""Aggregates that merge, and the products made of them. Pure."""
