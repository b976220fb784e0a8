"""MERGE by delta-rs: it writes the files anew that it touches, which up to some million rows costs less than planning.

It finds out for itself, from the source's least and greatest keys, which files those can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.lake.folder_commits import committing, write
from sessionlake.lake.parquet import conformed
from sessionlake.lake.rows_by_key import Lookup
from sessionlake.lake.table_files import live
from sessionlake.lake.upsert import Upsert
from sessionlake.protocol.names import DELETE, WRITTEN

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.table import TableMerger


def merged_by_delta_rs(
    delta: DeltaTable, source: pa.Table, upsert: Upsert, app: str, batch: int, lookup: Lookup | None = None
) -> bool:
    """Commits one MERGE, beside which nobody else may commit: always True.

    Args:
        app: application id of the transaction.
        batch: its version.
        lookup: finds the rows that the source is combined with, if it is.

    Raises:
        TooLargeError: these are too large.
    """
    from deltalake import CommitProperties, Transaction

    properties = CommitProperties(app_transactions=[Transaction(app, batch)])
    if lookup is not None and lookup.combine is not None:
        schema = pa.schema(delta.schema().to_arrow())
        found = lookup.find(live(delta), source, upsert.keys, schema)
        if not found:
            rows = pa.Table.from_batches([conformed(batch, schema) for batch in source.to_batches()], schema)
            write(delta, rows, "append", properties)
            return True
        source = lookup.combined(source, found, upsert.keys, schema)
    _merge(delta, source, upsert, properties)
    return True


def _merge(delta: DeltaTable, source: pa.Table, upsert: Upsert, properties: CommitProperties) -> None:
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in upsert.keys)
    # Only of a source that is read before the plan is made are the least and greatest keys known.
    with committing(delta) as hooks:
        merge = delta.merge(
            source,
            same,
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            commit_properties=properties,
            post_commithook_properties=hooks,
        )
        _clauses(merge, upsert).execute()


def _clauses(merge: TableMerger, upsert: Upsert) -> TableMerger:
    """The MERGE with what becomes of rows that match, and of those that do not."""
    taken = {_quoted(name): f"s.{_quoted(name)}" for name in upsert.columns}
    kept = {
        _quoted(name): f"CASE WHEN s.{WRITTEN}[{i}] THEN s.{_quoted(name)} ELSE t.{_quoted(name)} END"
        for i, name in enumerate(upsert.kept, 1)
    }
    if upsert.deletes:
        merge = merge.when_matched_delete(f"s.{DELETE}")
    if upsert.updates:
        merge = merge.when_matched_update(taken | kept)
    if upsert.inserts:
        whole = {_quoted(name): f"s.{_quoted(name)}" for name in (*upsert.keys, *upsert.kept)}
        merge = merge.when_not_matched_insert(whole | taken, f"NOT s.{DELETE}" if upsert.deletes else None)
    return merge


def _quoted(name: str) -> str:
    """An identifier of DataFusion's SQL."""
    return '"' + name.replace('"', '""') + '"'
