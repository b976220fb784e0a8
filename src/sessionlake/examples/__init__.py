"""Processors to learn from, and to use."""
