"""Selects the rows of one session in a table, both as an Arrow mask and as a Spark condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import MESSAGES, QUARANTINE
from sessionlake.protocol import erased
from sessionlake.spark.frames import convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ERASED_VALUES: dict[str, Any] = {"key": erased.ERASED_KEY, "value": None, "headers": None}
"""Values that replace the content of an erased message in `bronze.messages`, by column. Other columns stay."""


@dataclass(frozen=True)
class SessionRowSelection:
    """Selects the rows of a table that have a session's topic and session id, in all partitions.

    Attributes:
        topic: Kafka topic of the session.
        session: the session's id.
        id_column: the column with the session id. It is text, or UTF-8 bytes if the column is `key`.
        upper_bounds: for some columns, the highest value that a selected row can have.
    """

    topic: str
    session: str
    id_column: str = "session_id"
    upper_bounds: Mapping[str, Any] = field(default_factory=dict)
    """Always empty, since the highest values of a session's rows are unknown. So no file is skipped."""

    @classmethod
    def select_rows_of_session(
        cls, table: str, topic: str, session: str, *, by_key: bool = True
    ) -> SessionRowSelection:
        """Returns the selection of a session's rows in a table.

        In tables of messages, rows are selected by the Kafka key, so that messages that could not be used are included.

        Args:
            table: Name of the table.
            topic: Topic of the session.
            session: Id of the session.
            by_key: False if the Kafka key is not the session's id, as with feeds.
        """
        return cls(topic, session, "key" if by_key and table in {MESSAGES, QUARANTINE} else "session_id")

    @property
    def columns_needed_for_mask(self) -> list[str]:
        """Names of the columns that are needed to decide whether a row belongs to the session."""
        return ["topic", self.id_column]

    @property
    def stored_session_id(self) -> str | bytes:
        """The session's id in the type of `id_column`: text, or UTF-8 bytes."""
        return self.session.encode() if self.id_column == "key" else self.session

    def mask_selected_rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns a boolean for each row of the record batch: True if it belongs to the session."""
        own = batch.column(self.id_column)
        named = pc.equal(own, pa.scalar(self.stored_session_id, own.type))
        return pc.fill_null(pc.and_(named, pc.equal(batch.column("topic"), self.topic)), fill_value=False)

    def build_merge_source(self, spark: SparkSession) -> DataFrame:
        """Returns a Spark frame with the alias `s`: one row with the session's topic and id.

        It is joined with the table. So the id is data, and does not appear in the text of a command in the table's
        history.
        """
        return convert_to_spark_frame(
            spark, pa.table({"topic": [self.topic], self.id_column: [self.stored_session_id]})
        ).alias("s")

    def build_merge_condition(self) -> Column:
        """Returns a join condition: rows of the table (alias `t`) have topic and id of the source (alias `s`)."""
        from pyspark.sql import functions as F

        return (F.col("t.topic") == F.col("s.topic")) & (F.col(f"t.{self.id_column}") == F.col(f"s.{self.id_column}"))

    def build_source_and_erased_values(
        self,
        spark: SparkSession,
        messages: DataFrame,  # noqa: ARG002 - only a subclass reads them
    ) -> tuple[DataFrame, dict[str, Column]]:
        """Returns a frame as `build_merge_source` does, and the values that erased messages get, by column.

        Args:
            spark: The Spark session.
            messages: All messages in the table.
        """
        from pyspark.sql import functions as F

        values = {name: F.lit(None if value is None else bytearray(value)) for name, value in ERASED_VALUES.items()}
        return self.build_merge_source(spark), values

    def erase_selected_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the record batch with key, value and headers of the session's messages erased.

        Other messages stay unchanged.
        """
        gone = self.mask_selected_rows(batch)
        columns = [
            pc.if_else(gone, pa.scalar(ERASED_VALUES[name], column.type), column) if name in ERASED_VALUES else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class SessionMessageEraser(Protocol):
    """Erases a session in its messages, of which some have other sessions, too."""

    def erase_messages(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a row for each of the session's messages: `topic, partition, offset, value, is_shared`.

        `value` is the new value. `is_shared` is true if the message has other sessions, so that its key and headers
        stay.
        """

    def erase_messages_in_spark_frame(self, messages: DataFrame) -> DataFrame:
        """Does the same for a Spark frame."""


@dataclass(frozen=True)
class OffsetRowSelection(SessionRowSelection):
    """Selects rows by topic, partition and offset.

    Attributes:
        places: Columns `partition int32, offset int64` of the selected messages, each once.
    """

    places: pa.Table = field(default_factory=lambda: pa.table({"partition": pa.array([], pa.int32()), "offset": []}))

    @property
    def columns_needed_for_mask(self) -> list[str]:
        """Names of the columns that are needed to decide whether a row is one of the messages."""
        return ["topic", "partition", "offset"]

    def mask_selected_rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns a boolean for each row of the record batch: True if it is one of the messages."""
        own = _join_partition_and_offset(batch.column("partition"), batch.column("offset"))
        selected = _join_partition_and_offset(*(self.places[name].combine_chunks() for name in ("partition", "offset")))
        found = pc.and_(pc.is_in(own, value_set=selected), pc.equal(batch.column("topic"), self.topic))
        return pc.fill_null(found, fill_value=False)

    def build_merge_source(self, spark: SparkSession) -> DataFrame:
        """Returns a Spark frame with the alias `s`: topic, partition and offset of each message.

        It is joined with the table.
        """
        topics = pa.repeat(self.topic, self.places.num_rows)
        return convert_to_spark_frame(spark, self.places.append_column("topic", topics)).alias("s")

    def build_merge_condition(self) -> Column:
        """Returns a join condition of the table (alias `t`) and the source frame (alias `s`).

        Topic, partition and offset must be equal.
        """
        from pyspark.sql import functions as F

        first, *others = (F.col(f"t.{name}") == F.col(f"s.{name}") for name in self.columns_needed_for_mask)
        return reduce(and_, others, first)


@dataclass(frozen=True)
class SessionMessageSelection(OffsetRowSelection):
    """Selects the session's messages in `bronze.messages` where the Kafka key does not name the session.

    Attributes:
        eraser: Erases the session in the messages.
    """

    eraser: SessionMessageEraser = field(kw_only=True)

    def build_source_and_erased_values(
        self, spark: SparkSession, messages: DataFrame
    ) -> tuple[DataFrame, dict[str, Column]]:
        """Returns place and new value of each message, and the values that erased messages get, by column."""
        from pyspark.sql import functions as F

        own = messages.join(self.build_merge_source(spark), self.columns_needed_for_mask, "left_semi")
        is_shared, mark = (
            F.col("s.is_shared"),
            F.struct(F.lit(erased.PARTS_ERASED_HEADER).alias("key"), F.lit(None).cast("binary").alias("value")),
        )
        others = F.filter(F.coalesce("t.headers", F.array()), lambda one: one["key"] != erased.PARTS_ERASED_HEADER)
        values = {
            "key": F.when(is_shared, F.col("t.key")).otherwise(F.lit(bytearray(erased.ERASED_KEY))),
            "value": F.col("s.value"),
            "headers": F.when(is_shared, F.concat(others, F.array(mark))),
        }
        return self.eraser.erase_messages_in_spark_frame(own).alias("s"), values

    def erase_selected_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with the session erased in its messages. Other messages stay as they are."""
        gone = self.mask_selected_rows(batch)
        own = batch.filter(gone)
        left = self.eraser.erase_messages(own)
        is_shared = left.column("is_shared")
        rest = {
            "key": pc.if_else(is_shared, own.column("key"), pa.scalar(erased.ERASED_KEY, pa.binary())),
            "value": left.column("value"),
            "headers": _mark_headers(own.column("headers"), is_shared),
        }
        places = np.arange(batch.num_rows)
        places[gone.to_numpy(zero_copy_only=False)] = batch.num_rows + np.arange(own.num_rows)
        columns = [
            pa.concat_arrays([column, rest[name].cast(column.type)]).take(pa.array(places)) if name in rest else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _mark_headers(headers: pa.Array, is_shared: pa.BooleanArray) -> pa.Array:
    """Returns headers with the mark of messages with erased parts; null where `is_shared` is false."""
    mark = {"key": erased.PARTS_ERASED_HEADER, "value": None}
    marked = [
        [*(one for one in some or () if one["key"] != mark["key"]), mark] if shared else None
        for some, shared in zip(headers.to_pylist(), is_shared.to_pylist(), strict=True)
    ]
    return pa.array(marked, headers.type)


def _join_partition_and_offset(partition: pa.Array, offset: pa.Array) -> pa.Array:
    """Returns a text for each message: its partition and its offset, joined."""
    return pc.binary_join_element_wise(partition.cast(pa.string()), offset.cast(pa.string()), "/")
