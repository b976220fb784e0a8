"""Turns Kafka captures into exact session tables and live analytics, stored as Delta tables."""

__version__ = "0.1.0"
