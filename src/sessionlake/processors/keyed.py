"""A processor by the values of columns: what its table holds follows from the rows of the table that it is given.

Nothing is kept but the table. A batch tells which keys have new rows, or other ones; all rows of these are gone through
in their order, and what comes of them replaces what had come before, in one MERGE. So late rows, any batches, a replay
and a rebuild are one case. It costs a batch the history of the keys that it touches, and a look at the source's keys.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.build import code_version
from sessionlake.delta.commit import merge
from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.definition import TableSchema, with_comments
from sessionlake.delta.schemas.names import LEDGER, REFERENCE
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED, STATISTICS_COLUMNS, split_names
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import ConfigError, LakeError, LossError
from sessionlake.gold.tables.notes import LOGIC
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput
from sessionlake.ledger.progress import last_batch
from sessionlake.ledger.retained import read_heads
from sessionlake.processors.by_class import ByClass
from sessionlake.processors.by_product import ByProduct
from sessionlake.processors.difference import Difference, difference
from sessionlake.processors.load import config_hash_of
from sessionlake.processors.output import BATCH, BATCH_COMMENT
from sessionlake.protocol.names import DELETE, quote
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProcessorSettings, ProductProcessor
from sessionlake.streaming.checkpoint import last_planned
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.source_columns import can_be_told, is_ahead, other_column, place_read, table_id
from sessionlake.streaming.stores import put_aside as put_checkpoint_aside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KeyedTable:
    """The table of a processor with a key, and what it is made of.

    Raises:
        ConfigError: the class, the product or the columns cannot be used.
        LakeError: the source is not there, tells nothing of its changes, or lacks rows that retention has removed.
    """

    def __init__(self, spark: SparkSession, settings: Settings, own: ProcessorSettings) -> None:
        self._settings, self._own = settings, own
        if not Lake(settings).exists(spark, own.source):
            raise LakeError(f"{own.source} is not there yet: what fills it has to run first")
        present = Lake(settings).storage.columns(spark, own.source)
        self.work = ByProduct(own, present) if isinstance(own, ProductProcessor) else ByClass(own, present)
        self.columns = (*self.work.columns, (BATCH, "bigint"))
        by = self.work.by
        columns = with_comments(self.columns, {**self.work.comments, BATCH: BATCH_COMMENT})
        schema = TableSchema(
            columns,
            self.work.comment,
            written_by="processors.keyed",
            cluster_by=by[:2],
            statistics_columns=by,
            change_feed=True,
        )
        self.lake = Lake(settings, {own.into: schema})

    @property
    def keys(self) -> tuple[str, ...]:
        """What tells its rows apart."""
        return self.work.keys

    def refuse_other_key(self, spark: SparkSession) -> None:
        """Refuses a table whose rows are by other columns than the key's.

        Raises:
            ConfigError: naming both.
        """
        own = self._own
        if (by := self._is_by(spark)) not in (None, self.work.by):
            raise ConfigError(
                f"{own.where}.key: the rows of {own.into} are by {', '.join(by or ())}, and not by "
                f"{', '.join(self.work.by)}: with another key give it another `table`; or drop "
                f"that one, and run `sessionlake rebuild {own.rebuilt_as}`"
            )

    def _is_by(self, spark: SparkSession) -> tuple[str, ...] | None:
        """The columns that the rows of the table there is are by."""
        if not self.lake.exists(spark, self._own.into):
            return None
        return split_names(self.lake.storage.properties(spark, self._own.into).get(STATISTICS_COLUMNS, ""))

    # -- what a declared product's rows rest on

    def is_whole(self, spark: SparkSession) -> bool:
        """Whether the table is what the product, as it is declared now, has made of what it has read."""
        there = self.lake.exists(spark, self._own.into)
        return there and self.lake.storage.properties(spark, self._own.into).get(LOGIC) == self.work.logic

    def begin(self, spark: SparkSession) -> None:
        """Creates the table if there is none, and holds a product's to one logic.

        Raises:
            ConfigError: a class's rows are by another key.
            LakeError: a product's rows were made by other logic, or are lost.
        """
        own, lake, logic = self._own, self.lake, self.work.logic
        if logic is None:
            self.refuse_other_key(spark)
        elif not self.is_whole(spark):
            begun = Generations(self._settings.checkpoint(own.layer), own.layer).present.app_id is not None
            if begun or (lake.exists(spark, own.into) and lake.reader(spark).any(own.into)):
                raise LakeError(
                    f"{own.into} was made by other logic (now {logic}), or is not whole: "
                    f"`sessionlake rebuild {own.rebuilt_as}` makes it anew"
                )
        lake.ensure(spark, [own.into, LEDGER])
        self.note_logic(spark)

    def put_aside(self, spark: SparkSession) -> None:
        """Has a stream that cannot go on begin once more, when the table has all that it has read and will.

        That is one that has read another table than the source, or one before it, or a source of other columns; or one
        of which it cannot be told, since the table was put back from a backup or what it has read last is gone.
        """
        own, checkpoint = self._own, self._settings.checkpoint(self._own.layer)
        read, place = place_read(checkpoint), (spark, self.lake, own.source, checkpoint)
        of_another = read is not None and read.table != table_id(spark, self.lake, own.source)
        if of_another or is_ahead(*place) or not can_be_told(*place) or other_column(*place) is not None:
            put_checkpoint_aside(spark, self.lake, [Path(checkpoint)], uuid.uuid4().hex[:12])

    def begin_anew(self, spark: SparkSession) -> None:
        """Sees to it that a product's table has the columns that it is to have, and is not whole until it is made."""
        own, lake = self._own, self.lake
        if self.work.logic is not None and lake.exists(spark, own.into) and not self.is_whole(spark):
            lake.set_property(spark, own.into, LOGIC, "")
            if self._is_by(spark) != self.work.by:
                lake.drop(spark, own.into)

    def note_logic(self, spark: SparkSession) -> None:
        """Notes what a product's rows rest on: from then on the table is whole."""
        if self.work.logic is not None and not self.is_whole(spark):
            self.lake.set_property(spark, self._own.into, LOGIC, self.work.logic)

    # -- what it is made of

    def feed(self, spark: SparkSession) -> DataFrame:
        """The stream of what is added to the source, or changes in it."""
        own, told = self._own, self.lake.storage.properties(spark, self._own.source)
        if own.source.startswith(REFERENCE) and told.get(CHANGE_FEED) != "true":
            self.lake.set_property(spark, own.source, CHANGE_FEED, "true")
            told = {CHANGE_FEED: "true"}
        if told.get(CHANGE_FEED) == "true":
            options = {"readChangeFeed": "true"}
        elif told.get(APPEND_ONLY) is not None or (own.source in TABLES and TABLES[own.source].append_only):
            options = SKIP_REMOVALS
        else:
            raise LakeError(
                f"{own.where}.source: {own.source} tells nothing of the rows that change in it: it is "
                "neither a table that rows are only appended to, nor one with a change data feed, as gold.change_feed "
                "switches on for gold's"
            )
        return self.lake.stream(spark, own.source, self._settings.silver.max_bytes_per_trigger, options)

    def source(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """The source's rows, now or as of a version.

        Raises:
            LakeError: retention has removed some.
        """
        own = self._own
        if (cut := read_heads(self.lake.reader(spark)).get(own.source)) is not None and cut.gone:
            raise LakeError(f"{cut.summary}: processor {own.name} goes by all rows of a key")
        return self.lake.read(spark, own.source, version)

    def made(self, spark: SparkSession, keys: DataFrame | None = None) -> DataFrame:
        """What comes of the source's rows: the table's columns, less `_batch`.

        Args:
            keys: of these alone.

        Raises:
            ProcessorError: the class failed.
        """
        rows = self.work.given(self.source(spark))
        if keys is not None:
            rows = rows.join(keys, list(self.work.by), "left_semi")
        return self.work.made(rows)


def start(spark: SparkSession, settings: Settings, own: ProcessorSettings, *, once: bool = False) -> LayerQuery:
    """Starts a keyed processor's stream; see `processors.job.start`."""
    table = KeyedTable(spark, settings, own)
    table.begin(spark)
    _refuse_older_checkpoint(table.lake.reader(spark), settings, own)
    other = other_column(spark, table.lake, own.source, settings.checkpoint(own.layer))
    if other is not None:
        raise LakeError(
            f"{own.layer}: {own.source} had a column {other} when it was read last, and does not have it so any more: "
            f"run `sessionlake rebuild {own.rebuilt_as}`, which makes {own.into} of the rows as they are now"
        )
    if is_ahead(spark, table.lake, own.source, settings.checkpoint(own.layer)):
        raise LossError(
            f"{own.layer} has read versions of {own.source} that are gone: it was put back from a backup",
            fix=f"Run `sessionlake rebuild {own.rebuilt_as}`, which makes {own.into} of the rows as they are now",
        )
    query = LayerQuery(own.layer, settings.checkpoint(own.layer))
    return query.start(
        table.feed(spark), _KeyedBatch(table, Ledger(table.lake), settings, own), trigger=own.trigger, once=once
    )


def _refuse_older_checkpoint(reader: TableReader, settings: Settings, own: ProcessorSettings) -> None:
    """Its next batches would have the numbers of some that the table has, and be passed over.

    Raises:
        LossError: the ledger has batches behind those of the checkpoint.
    """
    checkpoint = settings.checkpoint(own.layer)
    app_id, planned = Generations(checkpoint, own.layer).present.app_id, last_planned(checkpoint)
    recorded = None if app_id is None else last_batch(reader, own.layer, app_id)
    if recorded is not None and (planned is None or recorded > planned):
        raise LossError(
            f"the checkpoint {checkpoint} ends with batch {planned}, the table holds batches up to {recorded}",
            fix="Put the newer one back. Or remove it: all rows are read once more, and the table comes out the same",
        )


@dataclass(frozen=True)
class _KeyedBatch:
    """Commits one micro-batch: what comes of the keys that it touches, then the ledger row."""

    table: KeyedTable
    ledger: Ledger
    settings: Settings
    own: ProcessorSettings

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, own = datetime.now(UTC), frame.sparkSession, self.own
        by, lake = self.table.work.by, self.table.lake
        keys = self.table.work.given(frame).select(*map(quote, by)).distinct().localCheckpoint()
        rows = self.table.made(spark, keys).withColumn(BATCH, F.lit(txn.version).cast("bigint"))
        same = list(self.table.keys)
        former = self._former(spark, keys, begins=not txn.version)
        gone = former.join(rows.select(*map(quote, same)), same, "left_anti").withColumn(DELETE, F.lit(col=True))
        source = rows.withColumn(DELETE, F.lit(col=False)).unionByName(gone).localCheckpoint()
        count, outputs = source.count(), list[TableOutput]()
        if count:
            others = tuple(name for name, _ in self.table.columns if name not in same)
            upsert = Upsert(self.table.keys, others, pruned_by=by[:1], deletes=True)
            commit = merge(spark, lake, own.into, source, upsert, txn)
            outputs.append(TableOutput(own.into, commit.version, count))
        told = LedgerEntry(
            own.layer, txn, own.source, started, outputs=tuple(outputs), config_hash=config_hash_of(self.settings, own)
        )
        self.ledger.write(spark, told)

    def _former(self, spark: SparkSession, keys: DataFrame, *, begins: bool) -> DataFrame:
        """The table's rows that the batch replaces.

        Args:
            begins: whether the stream does: of a key that the source has no more, no later batch would tell.
        """
        work, held = self.table.work, self.table.lake.read(spark, self.own.into)
        if not begins:
            return held.join(keys, list(work.by), "left_semi")
        there = work.given(self.table.source(spark)).select(*map(quote, work.by)).distinct()
        return held.join(there.join(keys, list(work.by), "left_anti"), list(work.by), "left_anti")


def rebuild(spark: SparkSession, settings: Settings, own: ProcessorSettings) -> tuple[int, Difference]:
    """Makes the table of all rows that the source has, in one commit; returns how many there are, and what differed.

    The stream goes on where it is: what it has yet to read is gone through once more. Where it cannot, since the source
    has other columns, its checkpoint is put aside, and it goes through all rows once more.
    """
    from pyspark.sql import functions as F

    started, table = datetime.now(UTC), KeyedTable(spark, settings, own)
    table.begin_anew(spark)
    rows, found = _compared(spark, table, own)
    lake, last = table.lake, last_batch(table.lake.reader(spark), own.layer)
    txn = Txn(f"{REBUILD}{uuid.uuid4().hex[:12]}", 0 if last is None else last + 1)
    by = config_hash_of(settings, own)
    told = json.dumps({"sessionlake": code_version(), "config": by})
    numbered = rows.withColumn(BATCH, F.lit(txn.version).cast("bigint"))
    columns = lake.storage.columns(spark, own.into) != dict(table.columns)
    if found or columns:  # a table whose rows are the same stays as it is: whoever follows it has nothing to do
        lake.overwrite(spark, own.into, numbered, txn, told, columns=columns)
    output = TableOutput(own.into, lake.latest_version(spark, own.into), found.rows)
    Ledger(lake).write(spark, LedgerEntry(own.layer, txn, own.source, started, outputs=(output,), config_hash=by))
    table.put_aside(spark)  # behind the rows: a new stream would not come to those of keys that the source has no more
    table.note_logic(spark)
    return found.rows, found


def compared(spark: SparkSession, settings: Settings, own: ProcessorSettings) -> Difference:
    """How the table would differ if the class, or the product, as it is now had made it; nothing is changed."""
    return _compared(spark, KeyedTable(spark, settings, own), own)[1]


def _compared(spark: SparkSession, table: KeyedTable, own: ProcessorSettings) -> tuple[DataFrame, Difference]:
    table.refuse_other_key(spark)
    if not table.lake.exists(spark, own.into):
        table.lake.ensure(spark, [own.into, LEDGER])
    rows = table.made(spark)
    return rows, difference(table.lake.read(spark, own.into), rows, table.keys)
