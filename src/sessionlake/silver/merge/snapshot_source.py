"""What is added to `session_snapshots` and its index: whole tables at the cuts of a range of batches.

Each from the session's last table kept before the range and the changes since, both of which are there for good: so a
range that is merged again, with more behind it, gives the same rows. On a laptop they are made in the driver, if they
fit into it, else on the cluster.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, PROGRESS, SNAPSHOTS
from sessionlake.delta.storage.reading import Condition, TooLargeError, is_in
from sessionlake.delta.storage.values import value_of, values_of
from sessionlake.protocol.arrow import SESSION, is_of_sessions, semi_join, session_keys
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.batch_range import BatchRange
from sessionlake.silver.merge.kept_cuts import ReadTable, kept_cuts
from sessionlake.silver.merge.seq_history import history_of
from sessionlake.silver.merge.snapshot_cluster import NAMED_SESSIONS, ClusterSnapshots, KeptTables
from sessionlake.silver.tables.snapshots import (
    CUT_COLUMNS,
    change_columns,
    last_cuts,
    sizes,
    snapshots,
    snapshots_schema,
)
from sessionlake.silver.tables.weights import of_kept, since_kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SnapshotSource:
    """Makes the snapshots of a range of batches."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._settings = settings
        self._columns = settings.capture.declared

    def of(self, batches: BatchRange, cuts: int, tasks: int = 1) -> KeptTables:
        """What is to be added to the two tables.

        Args:
            cuts: how many the batches have.
            tasks: among how many, at least, the cluster shares the work.
        """
        if cuts <= self._lake.limits.driver_cuts:
            with contextlib.suppress(TooLargeError):
                return self._in_driver(batches)
        return ClusterSnapshots(self._spark, self._lake, self._settings).of(batches, cuts, tasks)

    def _in_driver(self, batches: BatchRange) -> KeptTables:
        """See `of`.

        Raises:
            TooLargeError: what they are made of does not fit into memory.
        """
        read = partial(self._lake.reader(self._spark).table, max_bytes=self._lake.limits.driver_bytes)
        due = batches.at_hand(CUTS)
        if due is None:
            due = read(CUTS, ("_batch", operator.ge, batches.first), ("_batch", operator.le, batches.last))
        before = ("_batch", operator.lt, batches.first)
        kept = kept_cuts(read, *_named(due), before, of=due)
        last = last_cuts(kept)
        weights = since_kept(last, _passed(read, last, *_named(due), before))
        due = due.filter(of_kept(due, weights))
        made = [snapshots_schema(self._columns).empty_table()]
        if due.num_rows:
            rows, changes, anew = self._history(read, due, last.filter(is_of_sessions(last, due)), kept, batches.last)
            weighed = due.select([*CUT_COLUMNS, "changes"])
            made += snapshots(weighed, weights, rows, changes, anew, self._columns)
        whole = pa.concat_tables(made)
        counted = due.schema.field("changes").with_name("rows")
        keys = pa.schema([*(due.schema.field(name) for name in CUT_COLUMNS), counted])
        index = due.join(sizes(whole).select(keys.names).cast(keys), list(CUT_COLUMNS), join_type="inner")
        return KeptTables(whole.filter(pc.is_valid(whole["row_id"])), index)

    def _history(
        self, read: ReadTable, due: pa.Table, last: pa.Table, kept: pa.Table, last_batch: int
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """What the tables at cuts are told from: tables kept before, the changes since, and who is folded anew.

        Args:
            last: of the same sessions, the last cuts before of which the tables are kept.
            kept: all such cuts.
        """
        until = *_named(due), ("_batch", operator.le, last_batch)
        columns = [*change_columns(self._columns), "_batch"]
        changes = read(CHANGES, _since(due, last), *until, columns=columns, sessions=due)
        changes = changes.filter(_since_last(changes, "_position", pc.greater, last, "position"))
        anew = self._anew(read, changes, last, until)
        changes, last = changes.drop_columns(["_batch"]), last.filter(pc.invert(is_of_sessions(last, anew)))
        times = values_of(pc.unique(last["snapshot_at"]))
        held = read(SNAPSHOTS, ("snapshot_at", is_in, times), *_named(due), sessions=last)
        rows = semi_join(held, CUT_COLUMNS, last)
        if anew.num_rows:
            begun, history = history_of(read, anew, kept, last_batch, self._columns, _named(due))
            rows = pa.concat_tables([rows.select(begun.column_names).cast(begun.schema), begun])
            changes = pa.concat_tables([changes.filter(pc.invert(is_of_sessions(changes, anew))), history])
        return rows, changes, anew

    def _anew(self, read: ReadTable, changes: pa.Table, last: pa.Table, until: Sequence[Condition]) -> pa.Table:
        """The sessions that had a late fill since their last tables were kept.

        Args:
            changes: what was applied since then.
        """
        oldest = pc.min(changes["_batch"]).as_py()
        if oldest is None:
            return changes.select(SESSION)
        conditions = ("beneath", operator.eq, True), ("_batch", operator.ge, oldest), *until
        found = read(PROGRESS, *conditions, columns=[*SESSION, "_batch"], sessions=changes.select(SESSION))
        found = found.filter(_since_last(found, "_batch", pc.greater_equal, last, "_batch"))
        return found.group_by(list(SESSION)).aggregate([])


def _named(due: pa.Table) -> tuple[Condition, ...]:
    """The sessions by name, if they are few."""
    ids = pc.unique(due["session_id"]).to_pylist()
    return (("session_id", is_in, ids),) if len(ids) <= NAMED_SESSIONS else ()


def _passed(read: ReadTable, last: pa.Table, *conditions: Condition) -> pa.Table:
    """The cuts since those that had a table kept last."""
    oldest = pc.min(last["_batch"]).as_py()
    since: Condition = ("_batch", operator.lt, 0) if oldest is None else ("_batch", operator.ge, oldest)
    return read(CUTS, since, *conditions, columns=[*SESSION, "position", "changes"], sessions=last)


def _since(due: pa.Table, last: pa.Table) -> Condition:
    """When the changes since the sessions' last kept tables begin.

    Every change since a cut is as late as that; without a table before, as late as the first of them.
    """
    first = due.filter(pc.invert(is_of_sessions(due, last)))["changed_at"]
    times = [time for time in map(value_of, (pc.min(first), pc.min(last["snapshot_at"]))) if time is not None]
    return ("_applied_at", operator.ge, min(times)) if times else ("_batch", operator.lt, 0)


def _since_last(rows: pa.Table, column: str, compare: Callable[..., Any], last: pa.Table, name: str) -> pa.Array:
    """Which rows compare so with their session's last cut; all of those whose session has none."""
    value = last[name].take(pc.index_in(session_keys(rows), value_set=session_keys(last)))
    return pc.fill_null(compare(rows[column], value), pa.scalar(value=True))


def least_of(made: DataFrame | pa.Table, column: str) -> Any:
    """The least value of a column, a time or a number; None without rows."""
    from pyspark.sql import functions as F

    if isinstance(made, pa.Table):
        return value_of(pc.min(made[column]))
    if dict(made.dtypes)[column] != "timestamp":
        return made.agg(F.min(column)).collect()[0][0]
    micros = made.agg(F.unix_micros(F.min(column))).collect()[0][0]  # a collected timestamp has lost its zone
    return None if micros is None else value_of(pa.scalar(micros, pa.timestamp("us", "UTC")))
