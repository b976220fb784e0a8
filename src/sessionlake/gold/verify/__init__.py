"""Compares every table of gold with a recomputation by plain Spark SQL, or checks it for consistency."""
