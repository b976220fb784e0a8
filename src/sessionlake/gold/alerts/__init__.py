"""Rules evaluated over gold's tables: what is read for them, and what is written."""
