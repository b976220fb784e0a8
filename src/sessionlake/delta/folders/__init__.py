"""Delta tables in folders of a local disk, read and written without Spark.

Callers pass folders, rows and conditions. The package knows neither settings nor the lake's tables.

- `table_files.open_table` opens a version of a table. `reader` reads rows, and `history` reads commits from the log.
- `writable` is the gate before every commit: only what `open_writable` returns can be committed to. `spark_only_reason`
  says why a table is left to Spark.
- `staging` appends and replaces rows, `marked_merge` merges them, `removal` removes and erases them.
- `compaction` merges small files. `upkeep` removes files and log entries that nobody needs.
"""
