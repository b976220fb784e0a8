"""Kafka captures in, exact session tables and live analytics out, as Delta tables."""

__version__ = "0.1.0"
