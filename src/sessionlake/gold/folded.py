"""A folded batch of gold: its report, and its rows as Arrow or as frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.gold.fold.outputs import GoldReport, SeriesOutput, total
from sessionlake.protocol.arrow import dense
from sessionlake.protocol.types import Payloads
from sessionlake.spark.frames import Mapped, Rows, as_frame
from sessionlake.streaming.carried import rows_in, unpack
from sessionlake.streaming.folded import Folded, collect, taken_apart
from sessionlake.streaming.sharded import folded_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Part:
    """What one fold emitted, with its report."""

    folded: Folded
    report: GoldReport

    @staticmethod
    def collect(frame: DataFrame, inline_bytes: int) -> Part:
        """Runs the fold (one job) and takes its report."""
        folded, reports = collect(frame, SeriesOutput.REPORT, inline_bytes)
        return Part(folded, total(reports))

    @staticmethod
    def of(spark: SparkSession, payloads: Payloads) -> Part:
        """One that was folded in the driver."""
        frame = as_frame(spark, folded_table(payloads))
        folded, reports = taken_apart(frame, payloads, SeriesOutput.REPORT)
        return Part(folded, total(reports))


def rows_of(parts: Sequence[Part], kinds: Sequence[str], ddl: str) -> Rows:
    """The rows of these kinds: at hand if all their payloads are, else unpacked where they are.

    Args:
        ddl: their columns.
    """
    from pyspark.sql import functions as F

    found = [part.folded.at_hand(kinds) for part in parts]
    at_hand = [content for contents in found for content in contents or ()]
    if at_hand and None not in found:
        return read_rows(at_hand)
    payloads = [part.folded.frame.where(F.col("kind").isin(*kinds)).select("payload") for part in parts]
    return Mapped(reduce(lambda a, b: a.union(b), payloads), unpack, ddl)


def read_rows(payloads: Iterable[bytes], *, encoded: bool = False) -> pa.Table:
    """Payloads of one kind as one table.

    Args:
        encoded: texts that came as dictionaries stay so.
    """
    tables = map(rows_in, payloads)
    return pa.concat_tables(tables if encoded else map(dense, tables))
