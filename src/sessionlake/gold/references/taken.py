"""What gold has taken of reference tables: the rows that its enriched tables rest on, and those that are gone.

A reference table is others' to write, at any time. What is taken of it is noted first, as a correction with a number,
and only then are the rows made good that it touches: whoever comes after a death makes the same good again. New changes
are joined with what is noted.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta import commit
from sessionlake.delta.commit import append, fence_off, merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError, is_null
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.gold.enrich.reference import GONE_BY, TAKEN_BY, Difference, Fault, Reference, difference
from sessionlake.gold.enrich.table import SOURCES, Enriched
from sessionlake.protocol.names import ddl_of, quote
from sessionlake.spark.frames import EachBatch, map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of what the driver may read: joining takes about four times as much.
PART = 4
_CORRECTED = "sessionlake.corrected"
"""Property of a table of taken rows: the last correction that is made good."""


def read_reference(lake: Lake, reader: TableReader, reference: Reference) -> pa.Table:
    """A reference table's rows, as it is declared.

    Raises:
        LakeError: it is not there, has other columns, or is too large.
    """
    if not reader.exists(reference.table):
        raise LakeError(f"{reference.table} is not there: `sessionlake run gold` makes it")
    try:
        return _declared(reader, reference.table, reference.schema(), max_bytes=lake.limits.driver_bytes // PART)
    except TooLargeError as error:
        raise LakeError(f"{error}: gold keeps what it takes of a reference table in memory") from error


def held_rows(lake: Lake, reader: TableReader, reference: Reference) -> pa.Table:
    """The rows that gold's tables rest on, and the correction that brought each.

    Raises:
        LakeError: as `read_reference`.
    """
    schema, none = _taken_schema(reference), (GONE_BY, is_null, None)
    schema = schema.remove(schema.get_field_index(GONE_BY))
    return _declared(reader, reference.taken, schema, none, max_bytes=lake.limits.driver_bytes)


def _declared(reader: TableReader, table: str, schema: pa.Schema, *conditions: Condition, max_bytes: int) -> pa.Table:
    there = reader.schema(table).names
    if lacking := [name for name in schema.names if name not in there]:
        raise LakeError(
            f"{table} has no {', '.join(lacking)}; it has {', '.join(there)}: the next start of `sessionlake run gold` "
            "sees to that"
        )
    rows = reader.table(table, *conditions, columns=schema.names, max_bytes=max_bytes)
    try:
        return rows.cast(schema)
    except pa.ArrowException as error:
        raise LakeError(f"{table} has other types than gold.references says: {error}") from error


def waiting(lake: Lake, reader: TableReader, reference: Reference) -> tuple[Difference, list[Fault]]:
    """What gold has yet to take of a reference table, and the keys that rest.

    Raises:
        LakeError: as `read_reference`.
    """
    return difference(reference, held_rows(lake, reader, reference), read_reference(lake, reader, reference))


class TakenRows:
    """What is taken of each reference table, at hand.

    Attributes:
        lock: held while changes are joined with it and appended, and while more is taken.
    """

    def __init__(self, lake: Lake, references: Sequence[Reference]) -> None:
        self._lake = lake
        self._references = references
        self._held: dict[str, pa.Table] = {}
        self.lock = threading.Lock()

    def versions(self, spark: SparkSession) -> dict[str, pa.Table]:
        """The rows that hold of each reference table."""
        reader = self._lake.reader(spark)
        for one in self._references:
            if one.name not in self._held:
                self._held[one.name] = held_rows(self._lake, reader, one)
        return self._held

    def take(self, spark: SparkSession, reference: Reference, part: Difference) -> None:
        """Notes a correction."""
        with self.lock:
            txn = next_txn(spark, self._lake, reference.taken)
            rows = _noted(reference, part, txn.version)
            token = self._lake.storage.token(GOLD)
            if part.gone.num_rows:
                merge(spark, self._lake, reference.taken, rows, _upsert(reference), txn.fenced_by(token))
            else:
                append(spark, self._lake, reference.taken, rows, txn.fenced_by(token))
            self._held.pop(reference.name, None)

    def unfinished(self, spark: SparkSession, reference: Reference) -> Difference | None:
        """The last correction, if it is not noted as made good; rows of those before are not read."""
        done = int(self._lake.storage.properties(spark, reference.taken).get(_CORRECTED, 0))
        reader, schema = self._lake.reader(spark), _taken_schema(reference)
        gone, new = (
            reader.table(reference.taken, (name, operator.gt, done), columns=schema.names).cast(schema)
            for name in (GONE_BY, TAKEN_BY)
        )
        found = Difference(gone, new)
        return found if found.rows else None

    def note_corrected(self, spark: SparkSession, reference: Reference) -> None:
        """Notes that all rows are made good that the corrections so far touch."""
        number = self._lake.latest_version(spark, reference.taken)
        self._lake.storage.require_lease(reference.taken)
        self._lake.set_property(spark, reference.taken, _CORRECTED, str(number))


def next_txn(spark: SparkSession, lake: Lake, table: str) -> Txn:
    """The next transaction on a table of what is taken and looked up."""
    return commit.next_txn(spark, lake, table, "references")


def retire_others(spark: SparkSession, lake: Lake, tables: Sequence[str], app_id: str = "references") -> None:
    """Sees to it that what a holder before may yet write is passed over."""
    token = lake.storage.token(GOLD)
    if token:
        fence_off(spark, lake, tables, Txn.before_holder(app_id, token))


def _taken_schema(reference: Reference) -> pa.Schema:
    numbers = [pa.field(name, pa.int64()) for name in (TAKEN_BY, GONE_BY)]
    return pa.schema([*reference.schema(), *numbers])


def _noted(reference: Reference, part: Difference, number: int) -> pa.Table:
    schema = _taken_schema(reference)
    gone = part.gone.append_column(GONE_BY, pa.array([number] * part.gone.num_rows, pa.int64()))
    new = part.new.append_column(TAKEN_BY, pa.array([number] * part.new.num_rows, pa.int64()))
    new = new.append_column(GONE_BY, pa.nulls(new.num_rows, pa.int64()))
    return pa.concat_tables([gone.select(schema.names).cast(schema), new.select(schema.names).cast(schema)])


def _upsert(reference: Reference) -> Upsert:
    keys = (*reference.key_names, "valid_from", TAKEN_BY)
    others = tuple(name for name in _taken_schema(reference).names if name not in keys)
    return Upsert(keys, others, pruned_by=reference.key_names[:1])


def enriched_rows(spark: SparkSession, lake: Lake, changes: DataFrame, table: Enriched) -> DataFrame:
    """The enriched table's rows for changes that are too many for the driver: `Enriched.rows`, batch by batch.

    Args:
        changes: as silver has them.

    Raises:
        LakeError: as `read_reference`.
    """
    reader = lake.reader(spark)
    versions = {join.reference.name: held_rows(lake, reader, join.reference) for join in table.joins}
    needed = dict.fromkeys(SOURCES.get(name, name) for name in table.names)
    own = changes.select(*map(quote, needed))
    return map_batches(own, EachBatch(lambda rows: table.rows(rows, versions)), ddl_of(table.columns))
