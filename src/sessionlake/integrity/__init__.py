"""Judges the messages of sessions: each is applied, a duplicate, held back or quarantined. No Spark, clock or I/O."""
