"""A processor by the values of columns: what its table holds follows from the rows of the table that it is given.

Nothing is kept but the table. A batch tells which keys have new rows, or other ones; all rows of these are gone through
in their order, and what comes of them replaces what had come before, in one MERGE. So late rows, any batches, a replay
and a rebuild are one case. It costs a batch the history of the keys that it touches, and a look at the source's keys.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.build import code_version
from sessionlake.config import OnViolation, ProcessorSettings, Settings
from sessionlake.errors import ConfigError, LakeError, LossError, ProcessorError
from sessionlake.lake.commit import merge
from sessionlake.lake.ledger import REBUILD, LedgerEntry, TableOutput, write
from sessionlake.lake.names import LEDGER
from sessionlake.lake.progress import last_batch
from sessionlake.lake.reading import TableReader
from sessionlake.lake.retained import retained
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.storage import quote
from sessionlake.lake.table_schema import APPEND_ONLY, CHANGE_FEED, SKIPPING, TableSchema
from sessionlake.lake.tables import PASSING_REMOVALS, Lake
from sessionlake.lake.txn import Txn
from sessionlake.lake.upsert import DELETE, Upsert
from sessionlake.processors.api import KeyedProcessor, Record
from sessionlake.processors.difference import Difference, difference
from sessionlake.processors.load import ProcessorRef, config_hash_of, ref_of
from sessionlake.processors.output import BATCH, OutputColumns
from sessionlake.streaming.checkpoint import last_planned
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.source_columns import other_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORDINAL = "ordinal"
_ERROR = "_error"
# In so many groups keys are gone through: the rows of each must fit into a worker.
_GROUPS = 1024
_SLICE = 4096
# Types whose values are equal to themselves, and alike in Spark, in Arrow and in Python.
_EXACT = re.compile(r"string|binary|boolean|tinyint|smallint|int|bigint|decimal\(.+\)|date|timestamp|timestamp_ntz")
_RESERVED = frozenset({ORDINAL, BATCH, _ERROR})


def calls_of(
    processor: KeyedProcessor[Any], key: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Iterable[Record]]:
    """What a processor makes of a key's rows, call by call.

    Args:
        rows: all there are, in their order.
    """
    state = processor.initial(key)
    for row in rows:
        yield processor.on_row(state, row) or ()
    yield processor.on_end(state) or ()


@dataclass(frozen=True)
class _Groups:
    """A function of Arrow tables: rows of several keys to what comes of each.

    What a class raises is said in `_error`, of which the first row stops the batch.
    """

    ref: ProcessorRef
    own: ProcessorSettings
    head: tuple[tuple[str, str], ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        processor = self.ref.load_keyed()
        output = OutputColumns(processor.output, self.head)
        by = [(name, "ascending") for name in (*self.own.key, *self.own.order)]
        keys, records, errors = list[tuple[Any, ...]](), list[Any](), list[str | None]()
        key_types = [rows.schema.field(name).type for name in self.own.key]
        for key, of_key in groupby(_each(rows.sort_by(by)), key=lambda row: tuple(row[name] for name in self.own.key)):
            found, error = self._checked(processor, output, dict(zip(self.own.key, key, strict=True)), of_key)
            keys += [key] * len(found)
            records += found
            errors += [error] * len(found)
        if any(errors):  # the batch is not committed
            place = next(i for i, error in enumerate(errors) if error)
            keys, records, errors = keys[place : place + 1], [None], errors[place : place + 1]
        columns = {
            name: pa.array([key[i] for key in keys], kind)
            for i, (name, kind) in enumerate(zip(self.own.key, key_types, strict=True))
        }
        columns[ORDINAL] = pa.array(_numbered(keys), pa.int32())
        blank = output.check({})
        columns |= output.own([blank if record is None else record for record in records])
        return pa.table({**columns, _ERROR: pa.array(errors, pa.string())})

    def _checked(
        self, processor: KeyedProcessor[Any], output: OutputColumns, key: Mapping[str, Any], rows: Iterable[Any]
    ) -> tuple[list[Any], str | None]:
        found = list[Any]()
        try:
            for call in calls_of(processor, key, self._apart(rows)):
                found += map(output.check, self._limited(call))
        except Exception as error:  # noqa: BLE001 (a processor is its user's code)
            return [None], f"key {json.dumps(dict(key), default=str)}: {type(error).__name__}: {error}"
        return found, None

    def _limited(self, call: Iterable[Record]) -> Iterator[Record]:
        limit = self.own.max_records_per_call
        for number, record in enumerate(call):
            if number == limit:
                raise OverflowError(f"more than {limit} records of one call: max_records_per_call allows no more")
            yield record

    def _apart(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """A key's rows, as long as each has its own place among them: else batches would decide which comes first."""
        former: list[Any] | None = None
        for row in rows:
            place = [row[name] for name in self.own.order]
            if place == former:
                raise ValueError(f"two rows are alike in {', '.join(self.own.order)}: `order` must tell them apart")
            former = place
            yield row


def _each(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=_SLICE):
        yield from batch.to_pylist()


def _numbered(keys: Iterable[tuple[Any, ...]]) -> list[int]:
    """Of each record, which of its key's it is."""
    seen: dict[tuple[Any, ...], int] = {}
    found = []
    for key in keys:
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return found


class KeyedTable:
    """The table of a processor with a key, and what it is made of.

    Raises:
        ConfigError: the class or the columns cannot be used.
        LakeError: the source is not there, tells nothing of its changes, or lacks rows that retention has removed.
    """

    def __init__(self, spark: SparkSession, settings: Settings, own: ProcessorSettings) -> None:
        self._settings, self._own, self._ref = settings, own, ref_of(own)
        if own.on_error not in (None, OnViolation.FAIL):
            raise ConfigError(f"processors.{own.name}.on_error: with a key there is fail alone")
        if not Lake(settings).exists(spark, own.source):
            raise LakeError(f"{own.source} is not there yet: what fills it has to run first")
        present = Lake(settings).storage.columns(spark, own.source)
        if missing := [name for name in (*own.key, *own.order) if name not in present]:
            raise ConfigError(f"processors.{own.name}: {own.source} has no column {', '.join(missing)}")
        _check_key(own, present)
        self._head = (*((name, present[name]) for name in own.key), (ORDINAL, "int"))
        try:
            self.output = OutputColumns(self._ref.load_keyed().output, self._head)
        except ValueError as error:
            raise ConfigError(f"processors.{own.name}.class: {own.target}.output: {error}") from None
        comment = f"What the processor {own.name} makes of the rows of {own.source}, key by key"
        schema = TableSchema(self.output.ddl, comment, cluster_by=own.key[:2], skipping=own.key, feed=True)
        self.lake = Lake(settings, {own.into: schema})

    @property
    def keys(self) -> tuple[str, ...]:
        """What tells its rows apart."""
        return (*self._own.key, ORDINAL)

    def refuse_other_key(self, spark: SparkSession) -> None:
        """Refuses a table whose rows are by other columns than the key's.

        Raises:
            ConfigError: naming both.
        """
        own = self._own
        if self.lake.exists(spark, own.into):
            by = self.lake.storage.properties(spark, own.into).get(SKIPPING, "").split(",")
            if by != list(own.key):
                raise ConfigError(
                    f"processors.{own.name}.key: the rows of {own.into} are by {', '.join(by)}, and not by "
                    f"{', '.join(own.key)}: with another key give it another `table`; or drop "
                    f"that one, and run `sessionlake rebuild processor:{own.name}`"
                )

    def feed(self, spark: SparkSession) -> DataFrame:
        """The stream of what is added to the source, or changes in it."""
        own, told = self._own, self.lake.storage.properties(spark, self._own.source)
        if told.get(CHANGE_FEED) == "true":
            options = {"readChangeFeed": "true"}
        elif told.get(APPEND_ONLY) is not None or (own.source in TABLES and TABLES[own.source].append_only):
            options = PASSING_REMOVALS
        else:
            raise LakeError(
                f"processors.{own.name}.source: {own.source} tells nothing of the rows that change in it: it is "
                "neither a table that rows are only appended to, nor one with a change data feed"
            )
        return self.lake.stream(spark, own.source, self._settings.silver.max_bytes_per_trigger, options)

    def made(self, spark: SparkSession, keys: DataFrame | None = None) -> DataFrame:
        """What the class makes of the source's rows: the columns of `output`, less `_batch`.

        Args:
            keys: of these alone.

        Raises:
            ProcessorError: the class failed.
        """
        from pyspark.sql import functions as F

        own = self._own
        if (cut := retained(self.lake.reader(spark)).get(own.source)) is not None and cut.gone:
            raise LakeError(f"{cut.since}: processor {own.name} goes by all rows of a key")
        rows = self.lake.read(spark, own.source).where(self.has_key())
        if keys is not None:
            rows = rows.join(keys, list(own.key), "left_semi")
        ddl = ", ".join(f"{quote(name)} {sql}" for name, sql in (*self.output.ddl[:-1], (_ERROR, "string")))
        group = F.pmod(F.xxhash64(*map(quote, own.key)), F.lit(_GROUPS))
        groups = _Groups(self._ref, own, self._head)

        def call(of_group: pa.Table) -> pa.Table:
            return groups(of_group)

        found = rows.groupBy(group.alias("group")).applyInArrow(call, ddl).localCheckpoint()
        failed = found.where(F.col(_ERROR).isNotNull()).orderBy(_ERROR).first()
        if failed is not None:
            raise ProcessorError(
                f"processor {own.name} failed: {failed[_ERROR]}. Nothing of the batch was committed. Correct the class "
                "and run it again"
            )
        return found.drop(_ERROR)

    def has_key(self) -> Column:
        """Of a row of the source, whether it has all of the key's columns."""
        from pyspark.sql import functions as F

        found = F.lit(col=True)
        for name in self._own.key:
            found = found & F.col(quote(name)).isNotNull()
        return found


def _check_key(own: ProcessorSettings, columns: Mapping[str, str]) -> None:
    for name in own.key:
        if own.key.count(name) > 1 or name.lower() in _RESERVED:
            raise ConfigError(f"processors.{own.name}.key: each column once, none of {', '.join(sorted(_RESERVED))}")
        if not _EXACT.fullmatch(columns[name]):
            raise ConfigError(
                f"processors.{own.name}.key: {name} is {columns[name]}: texts, bytes, whole and decimal numbers, "
                "booleans, dates and times are told apart"
            )


def start(spark: SparkSession, settings: Settings, own: ProcessorSettings, *, once: bool = False) -> LayerQuery:
    """Starts a keyed processor's stream; see `processors.job.start`."""
    table = KeyedTable(spark, settings, own)
    table.refuse_other_key(spark)
    table.lake.ensure(spark, [own.into, LEDGER])
    _refuse_older_checkpoint(table.lake.reader(spark), settings, own)
    other = other_column(spark, table.lake, own.source, settings.checkpoint(own.layer))
    if other is not None:
        raise LakeError(
            f"{own.layer}: {own.source} had a column {other} when it was read last, and does not have it so any more: "
            f"run `sessionlake rebuild processor:{own.name}`, which makes {own.into} of the rows as they are now"
        )
    query = LayerQuery(own.layer, settings.checkpoint(own.layer))
    return query.start(table.feed(spark), _KeyedBatch(table, settings, own), trigger=own.trigger, once=once)


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
            "Put the newer one back, or remove it: all rows are gone through once more, which comes to the same table",
        )


@dataclass(frozen=True)
class _KeyedBatch:
    """Commits one micro-batch: what comes of the keys that it touches, then the ledger row."""

    table: KeyedTable
    settings: Settings
    own: ProcessorSettings

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, own = datetime.now(UTC), frame.sparkSession, self.own
        by, lake = list(map(quote, own.key)), self.table.lake
        keys = frame.where(self.table.has_key()).select(*by).distinct().localCheckpoint()
        rows = self.table.made(spark, keys).withColumn(BATCH, F.lit(txn.version).cast("bigint"))
        same = list(self.table.keys)
        former = lake.read(spark, own.into).join(keys, list(own.key), "left_semi")
        gone = former.join(rows.select(*map(quote, same)), same, "left_anti").withColumn(DELETE, F.lit(col=True))
        source = rows.withColumn(DELETE, F.lit(col=False)).unionByName(gone).localCheckpoint()
        count, outputs = source.count(), list[TableOutput]()
        if count:
            others = tuple(name for name, _ in self.table.output.ddl if name not in same)
            upsert = Upsert(self.table.keys, others, bounded=own.key[:1], deletes=True)
            commit = merge(spark, lake, own.into, source, upsert, txn)
            outputs.append(TableOutput(own.into, commit.version, count))
        told = LedgerEntry(
            own.layer, txn, own.source, started, outputs=tuple(outputs), config_hash=config_hash_of(self.settings, own)
        )
        write(spark, lake, told)


def rebuild(spark: SparkSession, settings: Settings, own: ProcessorSettings) -> tuple[int, Difference]:
    """Makes the table of all rows that the source has, in one commit; returns how many there are, and what differed.

    The stream goes on where it is: what it has yet to read is gone through once more. Where it cannot, since the source
    has other columns, its checkpoint is put aside, and it goes through all rows once more.
    """
    from pyspark.sql import functions as F

    started, table = datetime.now(UTC), KeyedTable(spark, settings, own)
    rows, found = _compared(spark, table, own)
    lake, last = table.lake, last_batch(table.lake.reader(spark), own.layer)
    txn = Txn(f"{REBUILD}{uuid.uuid4().hex[:12]}", 0 if last is None else last + 1)
    by = config_hash_of(settings, own)
    told = json.dumps({"sessionlake": code_version(), "config": by})
    numbered = rows.withColumn(BATCH, F.lit(txn.version).cast("bigint"))
    columns = lake.storage.columns(spark, own.into) != dict(table.output.ddl)
    lake.overwrite(spark, own.into, numbered, txn, told, changes=bool(found), columns=columns)
    output = TableOutput(own.into, lake.last_commit(spark, own.into).version, found.rows)
    write(spark, lake, LedgerEntry(own.layer, txn, own.source, started, outputs=(output,), config_hash=by))
    checkpoint = Path(settings.checkpoint(own.layer))
    if other_column(spark, lake, own.source, str(checkpoint)) is not None:
        checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.before-{txn.app_id.removeprefix(REBUILD)}"))
    return found.rows, found


def compared(spark: SparkSession, settings: Settings, own: ProcessorSettings) -> Difference:
    """How the table would differ if the class as it is now had made it; nothing is changed."""
    return _compared(spark, KeyedTable(spark, settings, own), own)[1]


def _compared(spark: SparkSession, table: KeyedTable, own: ProcessorSettings) -> tuple[DataFrame, Difference]:
    table.refuse_other_key(spark)
    if not table.lake.exists(spark, own.into):
        table.lake.ensure(spark, [own.into, LEDGER])
    rows = table.made(spark)
    return rows, difference(table.lake.read(spark, own.into), rows, table.keys)
