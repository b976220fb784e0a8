"""Aggregates that can be merged batch by batch, and the products (tables of gold) declared with them. Without Spark."""
