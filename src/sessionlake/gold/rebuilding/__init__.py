"""Rebuilds tables of gold from all changes that gold has read."""
