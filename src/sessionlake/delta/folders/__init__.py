"""Delta tables in folders of a local disk, read and written without Spark.

Callers pass folders, rows and conditions. The package uses neither settings nor names of sessionlake's tables.

- `table_files.open_table` opens a version of a table. `reader` reads rows, and `history` reads commits from the log.
- `writable` decides which tables the package may commit to: every commit needs the result of `open_writable_table`.
  `find_spark_only_feature` names the feature for which only Spark may write a table.
- `staging` appends and replaces rows, `marked_merge` merges rows, `removal` removes and erases rows.
- `compaction` merges small files. `upkeep` removes files and log entries that no version needs.
"""
