"""Gold compared with a recomputation by plain Spark SQL."""
