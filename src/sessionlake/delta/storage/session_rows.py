"""Which rows of a table are one session's: as a mask of Arrow rows, and as Spark's condition."""

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
"""What an erased message's row holds instead: where and when it was stays."""


@dataclass(frozen=True)
class SessionRows:
    """The rows of a session: those with its topic, and its id in the column `by` (text, or UTF-8 where it is `key`)."""

    topic: str
    session: str
    id_column: str = "session_id"
    upper_bounds: Mapping[str, Any] = field(default_factory=dict)
    """See `Expired`: no file can be left out."""

    @classmethod
    def of(cls, table: str, topic: str, session: str) -> SessionRows:
        """Of one of the lake's tables: messages have their key, whether or not they could be used."""
        return cls(topic, session, "key" if table in {MESSAGES, QUARANTINE} else "session_id")

    @property
    def columns(self) -> list[str]:
        """What must be read of a row to tell."""
        return ["topic", self.id_column]

    @property
    def value(self) -> str | bytes:
        """The id as the column has it."""
        return self.session.encode() if self.id_column == "key" else self.session

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows are the session's."""
        own = batch.column(self.id_column)
        named = pc.equal(own, pa.scalar(self.value, own.type))
        return pc.fill_null(pc.and_(named, pc.equal(batch.column("topic"), self.topic)), fill_value=False)

    def source(self, spark: SparkSession) -> DataFrame:
        """One row, alias `s`, that `condition` compares with: so no command's text in a table's history has the id."""
        return as_frame(spark, pa.table({"topic": [self.topic], self.id_column: [self.value]})).alias("s")

    def condition(self) -> Column:
        """Whether a row of the table (alias `t`) is the session's."""
        from pyspark.sql import functions as F

        return (F.col("t.topic") == F.col("s.topic")) & (F.col(f"t.{self.id_column}") == F.col(f"s.{self.id_column}"))

    def with_erased(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Messages, the session's as those of erased ones."""
        gone = self.mask(batch)
        columns = [
            pc.if_else(gone, pa.scalar(ERASED_VALUES[name], column.type), column) if name in ERASED_VALUES else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
