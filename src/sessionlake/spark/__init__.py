"""Spark sessions and frames."""
