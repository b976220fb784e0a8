"""Commits one micro-batch of gold, table by table."""
