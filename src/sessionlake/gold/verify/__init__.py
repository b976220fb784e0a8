"""Verifies gold: recomputes its tables by plain Spark SQL and compares them, or checks them for consistency."""
