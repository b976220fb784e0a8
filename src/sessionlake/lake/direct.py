"""Small writes to local tables without a Spark job: Arrow rows, written and committed by delta-rs in milliseconds.

An append through Spark costs about a second of CPU whatever it appends, most of it planning; a stream of small
batches makes several a second. Spark and delta-rs follow the same protocol, so each sees what the other commits.
delta-rs does not write to tables with liquid clustering: see `TableSchema.clustered`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc


def live_bytes(folder: Path) -> int:
    """Size of the files that make up a local table's present version."""
    from deltalake import DeltaTable

    return int(pc.sum(pa.table(DeltaTable(folder).get_add_actions())["size_bytes"]).as_py() or 0)


def append_directly(folder: Path, rows: pa.Table, app_id: str, version: int) -> None:
    """Appends the rows as one file, unless the application's transaction is in the table already.

    Args:
        folder: the table's.
        rows: columns named and typed as the table's.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    table = DeltaTable(folder)
    known = table.transaction_version(app_id)
    if known is not None and known >= version:
        return
    properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
    write_deltalake(table, rows, mode="append", commit_properties=properties)


def replace_directly(folder: Path, rows: pa.Table) -> None:
    """Replaces all rows of a table by these."""
    from deltalake import write_deltalake

    write_deltalake(folder, rows, mode="overwrite")
