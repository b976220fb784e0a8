"""The engines that run the statements of `sessionlake query`: Sail, which answers at once, and Spark.

- `interface` defines a statement, its result and an engine.
- `versions` chooses one version of each table for a statement.
- `coverage` says which statements Sail runs as Spark does. `value_kinds` and `sail_support` look at the kinds of their
  values.
- `sail` runs statements with Sail in another process (`sail_process`); `choice` falls back to Spark.
"""
