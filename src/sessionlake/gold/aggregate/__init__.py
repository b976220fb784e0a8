"""Aggregates that merge, and the products declared with them. Pure."""
