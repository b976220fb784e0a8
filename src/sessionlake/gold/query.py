"""Metrics over any range of time, read from the tables of metrics with the longest buckets that fit the range.

There are three tables of metrics, called tiers: per minute, per hour and per day.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.far_times import convert_time_to_micros, find_nearest_datetime
from sessionlake.delta.storage.reading import Condition, TableReader, is_in
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.standard import (
    METRICS_1M,
    MINUTE,
    TIERS,
    MetricsTimeRange,
    create_product_of_metrics_answer,
    split_time_range_by_metrics_table,
)
from sessionlake.gold.tables.expiry import describe_expiry, read_expiry_times
from sessionlake.gold.tables.table_properties import find_complete_tables
from sessionlake.settings.model import Settings
from sessionlake.settings.section import convert_duration_to_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = METRICS_1M.keys
# Number of rows that are buffered before they are merged. Memory holds these rows and the answer.
_AT_ONCE = 500_000


@dataclass(frozen=True)
class MetricsAnswer:
    """The answer to a query for metrics.

    Attributes:
        rows: One row per key and bucket, sorted: the keys, `window_start` if the query has a step, and the figures.
        read: Number of rows that were read, by table of metrics.
        files: By table of metrics, how many files were read, and how many the table has. The value is None if the
            platform does not say.
    """

    rows: pa.Table
    read: Mapping[str, int]
    files: Mapping[str, tuple[int, int] | None]


def metrics(
    settings: Settings,
    since: datetime,
    until: datetime,
    *,
    spark: SparkSession | None = None,
    by: Sequence[str] = KEYS,
    of: Mapping[str, Collection[str]] | None = None,
    step: timedelta | None = None,
) -> MetricsAnswer:
    """Returns points, min, max, sum, average and variance of all numbers whose event time is in a range.

    Args:
        since: Start of the range, a whole minute with a time zone.
        until: End of the range, a whole minute with a time zone. It is not included.
        spark: Needed only if tables are in a catalog.
        by: Keys of the answer: some of `topic, session_id, row_id, metric`. With all four, the answer also has `first`
            and `last`.
        of: Values to select, by key; None to select all.
        step: Length of the answer's buckets, in whole minutes counted from 1970. None for one bucket over the range.

    Raises:
        UsageError: The range, the keys or the step are not valid.
        LakeError: Gold has no metrics yet. Or the range includes buckets that have expired.
    """
    begin, end = _convert_to_exact_minute_ms("since", since), _convert_to_exact_minute_ms("until", until)
    length = None if step is None else convert_duration_to_ms(step)
    _require_valid_metrics_arguments(begin, end, by, of or {}, length)
    lake = Lake(settings)
    tiers = find_complete_tables(spark, lake, TIERS)
    if METRICS_1M not in tiers:
        raise LakeError(
            f"{METRICS_1M.table_name} does not exist yet, or was not filled completely",
            why="All metrics are computed from this table",
            fix="Run `sessionlake run gold`, which fills it",
        )
    conditions: list[Condition] = [(name, is_in, [*values]) for name, values in (of or {}).items()]
    reader, wanted = lake.reader(spark), [*split_time_range_by_metrics_table(begin, end, length, tiers)]
    _refuse_expired_buckets(reader, wanted, (of or {}).get("topic"))
    return read_metrics_answer(reader, create_product_of_metrics_answer(by, length), wanted, conditions)


def read_metrics_answer(
    reader: TableReader, answer_product: Product, ranges: Sequence[MetricsTimeRange], conditions: Sequence[Condition]
) -> MetricsAnswer:
    """Reads buckets from the tables of metrics, and merges them to the answer of a query.

    Args:
        reader: Reads the tables.
        answer_product: The product that defines the answer's keys and buckets, from `create_product_of_metrics_answer`.
        ranges: The ranges of time to read, each with the table of metrics to read it from.
        conditions: Conditions on the key columns of the tables of metrics.
    """
    read, buffered, parts = (
        dict.fromkeys((span.table.table_name for span in ranges), 0),
        0,
        [answer_product.arrow_schema().empty_table()],
    )
    for span in ranges:
        for rows in _read_metrics_rows(reader, span, conditions):
            read[span.table.table_name] += rows.num_rows
            buffered += rows.num_rows
            parts.append(answer_product.aggregate_shorter_buckets(rows))
            if buffered > max(_AT_ONCE, parts[0].num_rows):
                parts, buffered = [answer_product.merge_rows(pa.concat_tables(parts))], 0
    merged = answer_product.merge_rows(pa.concat_tables(parts))
    rows = merged.select([*answer_product.row_keys, *answer_product.result_columns])
    in_order = (
        rows.sort_by([(name, "ascending") for name in answer_product.row_keys]) if answer_product.row_keys else rows
    )
    return MetricsAnswer(in_order, read, _count_files_read(reader, ranges, conditions))


def _refuse_expired_buckets(
    reader: TableReader, ranges: Sequence[MetricsTimeRange], topics: Collection[str] | None
) -> None:
    known = read_expiry_times(reader, {span.table.table_name for span in ranges})
    for span in ranges:
        floors = {
            topic: floor
            for topic, floor in known.get(span.table.table_name, {}).items()
            if floor > span.begin and (topics is None or topic in topics)
        }
        if floors:
            raise LakeError(
                f"{describe_expiry(span.table.table_name, floors)}",
                fix="Choose a later start, or only topics that still have these buckets. If metrics per hour or day "
                "are kept longer, choose a range of whole hours or days",
            )


def _read_metrics_rows(
    reader: TableReader, metrics_range: MetricsTimeRange, conditions: Sequence[Condition]
) -> Iterator[pa.Table]:
    schema = metrics_range.table.arrow_schema()
    for batch in reader.read_batches(
        metrics_range.table.table_name,
        *conditions,
        *_build_metrics_range_conditions(metrics_range),
        columns=schema.names,
    ):
        yield pa.Table.from_batches([batch]).cast(schema)


def _build_metrics_range_conditions(metrics_range: MetricsTimeRange) -> list[Condition]:
    begin, end = map(find_nearest_datetime, (metrics_range.begin, metrics_range.end))
    return [(START, operator.ge, begin), (START, operator.lt, end)]


def _count_files_read(
    reader: TableReader, ranges: Sequence[MetricsTimeRange], conditions: Sequence[Condition]
) -> dict[str, tuple[int, int] | None]:
    found: dict[str, tuple[int, int] | None] = {}
    for table in dict.fromkeys(span.table.table_name for span in ranges):
        parts = [
            reader.find_files_to_read(table, *conditions, *_build_metrics_range_conditions(span))
            for span in ranges
            if span.table.table_name == table
        ]
        known = [part for part in parts if part is not None]
        read = {path for part in known for path in part.read}
        found[table] = (len(read), known[0].total) if known else None
    return found


def _convert_to_exact_minute_ms(argument_name: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise UsageError(
            f"{argument_name} {moment} has no time zone",
            why="So it is not clear which moment it means",
            fix="Add the time zone, for example +00:00",
        )
    passed = convert_time_to_micros(moment)
    if passed % (MINUTE * 1000):
        raise UsageError(
            f"{argument_name} {moment} is not a whole minute",
            why="The finest metrics are per minute",
            fix="Round the time to a minute",
        )
    return passed // 1000


def _require_valid_metrics_arguments(
    begin: int, end: int, by: Sequence[str], of: Mapping[str, Collection[str]], step: int | None
) -> None:
    if begin >= end:
        raise UsageError(
            "the range of time is empty: it does not start before it ends", fix="Choose an earlier start or a later end"
        )
    if strange := [name for name in (*by, *of) if name not in KEYS]:
        raise UsageError(f"metrics have no key {', '.join(strange)}", fix=f"Choose from {', '.join(KEYS)}")
    if len({*by}) < len(by):
        raise UsageError(
            f"metrics: `by` names a key twice: {', '.join(by)}", fix="Name each key at most once in `by` (`--by`)"
        )
    if step is not None and (step < MINUTE or step % MINUTE):
        raise UsageError(
            f"a step of {step} ms is not a number of whole minutes",
            why="The finest metrics are per minute",
            fix="Choose a step of one minute or more",
        )
