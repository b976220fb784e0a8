"""Judges the messages of sessions: applied, duplicate, held back or quarantined. Pure: no Spark, no clock, no I/O."""
