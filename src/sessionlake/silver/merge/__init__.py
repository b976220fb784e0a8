"""Merges batches of changes into the tables of sessions."""
