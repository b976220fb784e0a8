"""Applies changes to the tables of sessions in memory."""

from __future__ import annotations

import pyarrow as pa

from sessionlake.protocol.columns import Column
from sessionlake.protocol.names import DELETE, WRITTEN
from sessionlake.protocol.types import Row
from sessionlake.silver.tables.snapshots import ROW_KEY

SessionKey = tuple[str, int, str]
"""Topic, partition and session id."""
_BOOKKEEPING = ("_rescued", "_epoch", "_seq", "_ts", "_offset")


def apply_net_changes_in_memory(
    rows: dict[SessionKey, dict[str, Row]], net_changes: pa.Table, columns: tuple[Column, ...]
) -> None:
    """Applies net changes to rows in memory, as silver's MERGE does to `session_rows`."""
    found = net_changes.to_pylist()
    changed = {tuple(change[name] for name in ROW_KEY) for change in found}
    for change in found:
        topic, partition, session, row_id = (change[name] for name in ROW_KEY)
        table = rows.setdefault((topic, partition, session), {})
        if row_id is None:  # a snapshot: rows that it does not have are deleted
            for known in [known for known in table if (topic, partition, session, known) not in changed]:
                del table[known]
        elif change[DELETE]:
            table.pop(row_id, None)
        else:
            before = table.get(row_id)
            values = {
                column.name: change[column.name] if is_written or before is None else before[column.name]
                for column, is_written in zip(columns, change[WRITTEN], strict=True)
            }
            table[row_id] = values | {name: change[name] for name in _BOOKKEEPING}
