"""Batches of changes merged into the tables of sessions."""
