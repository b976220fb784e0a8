"""MERGE by delta-rs: it writes the files anew that it touches, which up to some million rows costs less than planning.

It finds out for itself, from the source's least and greatest keys, which files those can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.lake.upsert import DELETE, WRITTEN, Upsert

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


def merged_by_delta_rs(delta: DeltaTable, source: pa.Table, upsert: Upsert, app: str, batch: int) -> bool:
    """Commits one MERGE, beside which nobody else may commit: always True.

    Args:
        app: application id of the transaction.
        batch: its version.
    """
    from deltalake import CommitProperties, Transaction

    properties = CommitProperties(app_transactions=[Transaction(app, batch)])
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in upsert.keys)
    # Only of a source that is read before the plan is made are the least and greatest keys known.
    merge = delta.merge(
        source, same, source_alias="s", target_alias="t", streamed_exec=False, commit_properties=properties
    )
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
    merge.execute()
    return True


def _quoted(name: str) -> str:
    """An identifier of DataFusion's SQL."""
    return '"' + name.replace('"', '""') + '"'
