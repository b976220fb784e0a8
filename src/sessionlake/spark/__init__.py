"""Spark sessions, frames, settings and error texts. Nothing here knows the layers or their tables."""
