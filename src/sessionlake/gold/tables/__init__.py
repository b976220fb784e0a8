"""What gold stores about its tables: in table properties, and in `ops.retained` where expired buckets end."""
