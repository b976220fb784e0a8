"""Sessionlake in notebooks."""
