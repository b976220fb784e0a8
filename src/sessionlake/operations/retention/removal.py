"""What is known of the tables, the rules on it, and the removing: `ops.retained` says what is gone before it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import eq
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.bronze.kafka_times import message_time_column
from sessionlake.delta.commit import remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    EVENTS,
    GOLD,
    LEDGER,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    SESSIONS,
    SILVER,
    SNAPSHOTS,
)
from sessionlake.delta.storage.expired import LIMIT
from sessionlake.errors import ClaimedError, InterruptedOperationError, LossError
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.ledger.books import LedgerReader, to_dicts
from sessionlake.ledger.progress import (
    first_batch_since,
    first_offsets_since,
    last_batch,
    last_merged_batch,
    last_offsets,
)
from sessionlake.ledger.retained import (
    CLAIM,
    LIMITS,
    TABLES_REMOVED_TOGETHER,
    Retained,
    expired_rows,
    limits_moved_last,
    read_head,
    read_heads,
    read_retained,
    record_retained,
)
from sessionlake.operations.retention import by_session, rules
from sessionlake.operations.retention.ledger import cut_ledger
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings, milliseconds
from sessionlake.silver.stream_times import stored_times
from sessionlake.spark.frames import as_frame
from sessionlake.streaming.checkpoint import is_at_first
from sessionlake.streaming.journal import require_uninterrupted
from sessionlake.streaming.set_back import refuse_set_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    MESSAGES: "bronze",
    CHANGES: "changes",
    PROGRESS: "progress",
    SNAPSHOTS: "snapshots",
    QUARANTINE: "quarantine",
    EVENTS: "events",
    LEDGER: "ledger",
}
_RULES = {CHANGES: by_session.of_changes, SNAPSHOTS: by_session.of_snapshots, PROGRESS: by_session.of_progress}
_PLACE = ("topic", "partition")
# Rows are removed when some are so much of its span older than that.
_STEPS = 24
# After as many session timeouts without a message a session is forgotten: see `integrity.judge`.
_TIMEOUTS = 2


@dataclass(frozen=True)
class Removed:
    """What retention did to a table, and what keeps it from removing more."""

    rows: int = 0
    waits: str = ""


@dataclass(frozen=True)
class _Due:
    """What may go now.

    Attributes:
        batch: the last batch of silver that is old enough; -1 if the table names none.
    """

    limits: pa.Table
    batch: int = -1


def _keys(table: str) -> tuple[str, ...]:
    """Of what a table's limits are noted."""
    return _PLACE if table in {MESSAGES, QUARANTINE, EVENTS} else SESSION


class _WaitsError(Exception):
    """Nothing may go, and why."""


class Retention:
    """Removes old rows, table by table."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings, self._lake = spark, settings, Lake(settings)
        self._looked: dict[str, datetime] = {}

    def span(self, table: str) -> timedelta | None:
        """How long rows of a table stay; None for good."""
        name = _SETTINGS.get(table)
        found: timedelta | None = None if name is None else getattr(self._settings.maintain.retention, name)
        return found

    def remove(self, table: str, now: datetime, *, at_leisure: bool = False) -> Removed:
        """Removes what is old, and not needed by anybody.

        Args:
            at_leisure: only if it was not looked at lately.
        """
        span = self.span(table)
        last = self._looked.get(table)
        if span is None or (at_leisure and last is not None and now - last < span / _STEPS):
            return Removed()
        self._looked[table] = now
        try:
            with self._lake.storage.claim(self._spark, CLAIM, "removes old rows"):
                # Rows that a forgetting or rebuild has counted, and that died, are its own to remove.
                require_uninterrupted(self._settings, SILVER)
                if table == LEDGER:
                    return Removed(cut_ledger(self._spark, self._lake, now - span))
                return self._cut(table, now - span)
        except ClaimedError as error:
            del self._looked[table]
            return Removed(waits=str(error))
        except (_WaitsError, InterruptedOperationError, LossError) as error:
            return Removed(waits=str(error))

    def finish(self) -> None:
        """Removes what a process that died was removing. `retained.CLAIM` must be held.

        Of the ledger nobody counts what a session had, and gold's tables are made anew.
        """
        for table, found in read_heads(self._lake.reader(self._spark)).items():
            if found.pending and table in _SETTINGS and table != LEDGER:
                self._finished(self._before(table, found.before))

    def _cut(self, table: str, bound: datetime) -> Removed:
        before, finished = self._before(table, bound), 0
        if before.pending:
            finished = self._finished(before)
            before = self._before(table, bound)
        due = self._due(table, bound)
        limits = rules.advanced(before.limits, due.limits, _keys(table)) if table != PROGRESS else due.limits
        batch = max(before.batch, due.batch)
        if table == MESSAGES:
            count, limits = self._measured(limits)
        else:
            count = self._count(table, batch, limits)
        if not count:
            return Removed(finished)
        noted = limits if table != PROGRESS else LIMITS.empty_table()
        now = Retained(table, max(before.before, bound), batch, before.removed, count, noted)
        refuse_set_back(self._spark, self._lake, [RETAINED])
        record_retained(self._spark, self._lake, now)
        self._removed(now, limits)
        return Removed(finished + count)

    def _finished(self, found: Retained) -> int:
        """Ends a cut that a process that died had begun; how many rows of it were still there."""
        left = self._count(found.table, found.batch, found.limits)
        refuse_set_back(self._spark, self._lake, [RETAINED])
        self._removed(found, found.limits)
        return left

    def _removed(self, found: Retained, limits: pa.Table) -> None:
        """Removes what is noted, and notes that it is gone."""
        for part in TABLES_REMOVED_TOGETHER.get(found.table, (found.table,)):
            remove_rows(self._spark, self._lake, part, expired_rows(part, limits, found.batch))
        done = replace(found, removed=found.gone, pending=0, limits=LIMITS.empty_table())
        record_retained(self._spark, self._lake, done)

    def _before(self, table: str, bound: datetime) -> Retained:
        """What is noted, with the limits of all places; of sessions, those that a process that died was moving."""
        reader = self._lake.reader(self._spark)
        found = read_head(reader, table)
        if found is None:
            return Retained(table, bound)
        if _keys(table) == _PLACE:
            return read_retained(reader, [table])[table]
        if not found.pending:
            return found
        if table == PROGRESS:
            return replace(found, limits=by_session.of_progress(self._spark, self._lake, found.batch))
        return replace(found, limits=limits_moved_last(reader, found))

    def _count(self, table: str, batch: int, limits: pa.Table) -> int:
        if not limits.num_rows:
            return 0
        storage, parts = self._lake.storage, TABLES_REMOVED_TOGETHER.get(table, (table,))
        return sum(storage.count_rows(self._spark, part, expired_rows(part, limits, batch)) for part in parts)

    def _measured(self, limits: pa.Table) -> tuple[int, pa.Table]:
        """How many messages are to go, and the limits with the highest time that is said up to each."""
        from pyspark.sql import functions as F

        own = as_frame(self._spark, limits.select([*_PLACE, LIMIT])).alias("s")
        rows = self._lake.read(self._spark, MESSAGES).alias("t").join(own, expired_rows(MESSAGES, limits).condition())
        highest = F.timestamp_millis(F.max(message_time_column(self._settings, "t")))
        found = rows.groupBy("t.topic", "t.partition").agg(highest, F.count("*")).toArrow()
        found = found.rename_columns([*_PLACE, "highest_timestamp", "rows"])
        added = found.append_column("limit", pa.nulls(found.num_rows, pa.int64())).append_column(
            "session_id", pa.nulls(found.num_rows, pa.string())
        )
        count = pc.sum(found["rows"]).as_py() or 0
        return count, rules.advanced(limits, added.select(LIMITS.names).cast(LIMITS), _PLACE)

    # -- what is known

    def _due(self, table: str, bound: datetime) -> _Due:
        ledger = read_head(self._lake.reader(self._spark), LEDGER)
        if ledger is not None and ledger.before > bound:
            raise _WaitsError(f"{LEDGER} begins later, and says how old rows are")
        if table == MESSAGES:
            return _Due(rules.of_places(self._messages(bound)))
        batch = self._judged_before(bound)
        if table in {QUARANTINE, EVENTS}:
            return _Due(rules.of_places(self._aged(SILVER, bound)), batch)
        batch = min(batch, last_merged_batch(self._lake.reader(self._spark)))
        if table == CHANGES:
            batch = min(batch, self._read_by_gold())
        if batch < 0:
            return _Due(LIMITS.empty_table())  # no batch is old enough
        return _Due(_RULES[table](self._spark, self._lake, batch), batch)

    def _messages(self, bound: datetime) -> dict[TopicPartition, int]:
        """The last offset of bronze that may go, of each topic-partition."""
        reader = self._lake.reader(self._spark)
        aged, silver = self._aged(BRONZE, bound), last_offsets(reader, SILVER)
        if not silver:
            raise _WaitsError(f"{SILVER} has not begun")
        limits = rules.of_messages(aged, [silver], self._remembered())
        for processor in self._settings.processors:
            if processor.key:
                continue  # it reads no messages
            own = last_offsets(reader, processor.layer)
            if not own:
                raise _WaitsError(f"{processor.layer} has not begun")
            # What it is not given is not in its ledger.
            chosen = {place: limit for place, limit in limits.items() if re.fullmatch(processor.topics, place[0])}
            limits = {**limits, **dict.fromkeys(chosen, -1), **rules.of_messages(chosen, [own], _NOBODY)}
        return {place: limit for place, limit in limits.items() if limit >= 0}

    def _aged(self, layer: str, bound: datetime) -> dict[TopicPartition, int]:
        """The last offset of each topic-partition that the layer had taken in before a moment."""
        reader = self._lake.reader(self._spark)
        later = first_offsets_since(reader, layer, bound)
        return {place: min(last, later.get(place, last + 1) - 1) for place, last in last_offsets(reader, layer).items()}

    def _judged_before(self, bound: datetime) -> int:
        """The last batch of silver of before a moment."""
        reader = self._lake.reader(self._spark)
        last = last_batch(reader, SILVER)
        if last is None:
            raise _WaitsError(f"{SILVER} has not begun")
        first = first_batch_since(reader, SILVER, bound)
        return last if first is None else min(last, first - 1)

    def _read_by_gold(self) -> int:
        """The last batch of which gold has read all changes."""
        if is_at_first(self._settings.checkpoint(GOLD)):
            raise _WaitsError(f"{GOLD} is still at what {CHANGES} held when it began, which need not come in order")
        books = LedgerReader(self._lake.reader(self._spark), "source_to")
        read = [
            row["source_to"] for row in to_dicts(books.current(("layer", eq, GOLD))) if row["source_to"] is not None
        ]
        if not read:
            raise _WaitsError(f"{GOLD} has not begun: it is computed from all changes")
        return int(max(read)) - 1  # of the last one, it may have read a part

    def _remembered(self) -> pa.Table:
        """Of each topic-partition, the least first offset of the sessions that silver may have in its state.

        Of two rows of a session the earlier beginning and the later end count: it stays the longer for it. There is a
        row of every session that ever was, so they are not brought into the driver.
        """
        from pyspark.sql import functions as F

        lake, spark = self._lake, self._spark
        first, last = F.coalesce("first_offset", F.lit(0)), F.unix_millis("last_kafka_timestamp")
        columns = *_PLACE, "session_id", first.alias("first"), last.alias("last")
        found = (
            lake.read(spark, PROGRESS).where(F.col("_batch") > last_merged_batch(lake.reader(spark))).select(*columns)
        )
        if lake.exists(spark, SESSIONS):
            found = found.unionByName(lake.read(spark, SESSIONS).select(*columns))
        told = found.select(*_PLACE, F.col("last").alias("come")).unionByName(as_frame(spark, self._come()))
        come = told.groupBy(*_PLACE).agg(F.max("come").alias("come"))
        each = found.groupBy(*_PLACE, "session_id").agg(F.min("first").alias("first"), F.max("last").alias("last"))
        timeouts = _TIMEOUTS * milliseconds(self._settings.capture.session_timeout)
        over = F.coalesce(F.col("come") > F.col("last") + F.lit(timeouts), F.lit(col=False))
        held = each.join(F.broadcast(come), [*_PLACE]).where(~over)
        return held.groupBy(*_PLACE).agg(F.min("first").alias("first_offset")).toArrow()

    def _come(self) -> pa.Table:
        """How far stream time has come where silver has read to, by topic-partition, as far as it is noted.

        Silences have moved it on as messages have.
        """
        judged = last_offsets(self._lake.reader(self._spark), SILVER)
        places, behind = list(judged), np.array([*judged.values()], np.int64) + 1
        times, _ = stored_times(self._settings, SILVER).before(places, behind)
        noted = ((*place, time) for place, time in zip(places, times.tolist(), strict=True) if time != NO_TIME)
        return pa.Table.from_pylist([dict(zip(_COME.names, row, strict=True)) for row in noted], _COME)


_COME = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("come", pa.int64())])
_NOBODY = pa.table({"topic": pa.array([], pa.string()), "partition": pa.array([], pa.int32()),
                    "first_offset": pa.array([], pa.int64())})  # fmt: skip
