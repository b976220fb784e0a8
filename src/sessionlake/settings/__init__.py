"""The configuration: one validated tree."""
