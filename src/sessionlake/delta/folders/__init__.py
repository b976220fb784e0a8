"""Delta tables in folders of a local disk, read and written without Spark. Callers pass folders, rows and conditions.

- `table_files.opened` opens a version of a table; `reader` reads rows, `history` what the log tells of commits.
- `writable` is the gate: only what it returns can be committed to. `obstacle` says why a table is left to Spark.
- `staging` appends rows and replaces them, `marked_merge` merges, `removal` removes and rewrites rows.
- `compaction` merges small files, `upkeep` removes files and log entries that nobody needs.
"""
