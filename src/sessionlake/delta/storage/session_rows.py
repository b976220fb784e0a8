"""Selects the rows of one session in a table, as an Arrow mask and as a Spark condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import MESSAGES, QUARANTINE
from sessionlake.protocol import erased
from sessionlake.spark.frames import as_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ERASED_VALUES: dict[str, Any] = {"key": erased.KEY, "value": None, "headers": None}
"""Values that replace an erased message's content. Its offset and Kafka timestamp stay."""


@dataclass(frozen=True)
class SessionRows:
    """Selects the rows with a session's topic and id.

    Attributes:
        id_column: column that holds the id: as text, or as UTF-8 bytes if the column is `key`.
    """

    topic: str
    session: str
    id_column: str = "session_id"
    upper_bounds: Mapping[str, Any] = field(default_factory=dict)
    """Always empty: no file can be skipped."""

    @classmethod
    def of(cls, table: str, topic: str, session: str) -> SessionRows:
        """Returns the selection for a table. Messages are selected by their key, even if they could not be used."""
        return cls(topic, session, "key" if table in {MESSAGES, QUARANTINE} else "session_id")

    @property
    def columns(self) -> list[str]:
        """The columns that `mask` needs."""
        return ["topic", self.id_column]

    @property
    def value(self) -> str | bytes:
        """The session's id as the column holds it."""
        return self.session.encode() if self.id_column == "key" else self.session

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Returns which rows of the batch are the session's."""
        own = batch.column(self.id_column)
        named = pc.equal(own, pa.scalar(self.value, own.type))
        return pc.fill_null(pc.and_(named, pc.equal(batch.column("topic"), self.topic)), fill_value=False)

    def source(self, spark: SparkSession) -> DataFrame:
        """Returns a frame of one row, alias `s`, that `condition` joins with.

        The id is a value there, so that no command text in a table's history shows it.
        """
        return as_frame(spark, pa.table({"topic": [self.topic], self.id_column: [self.value]})).alias("s")

    def condition(self) -> Column:
        """Returns the join condition for rows of the table (alias `t`) that are the session's."""
        from pyspark.sql import functions as F

        return (F.col("t.topic") == F.col("s.topic")) & (F.col(f"t.{self.id_column}") == F.col(f"s.{self.id_column}"))

    def with_erased(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the messages with those of the session erased."""
        gone = self.mask(batch)
        columns = [
            pc.if_else(gone, pa.scalar(ERASED_VALUES[name], column.type), column) if name in ERASED_VALUES else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
