"""Buckets of metrics as columns. A bucket has the aggregates of one series in one minute, hour or day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.groups import Columns, RowGroups
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.gold.rules.condition_tree import Selection
from sessionlake.protocol.arrow import encode_values_as_codes
from sessionlake.protocol.types import Bools, Int64s

# The row id comes last because only it can contain the separator.
_SERIES = ("topic", "session_id", PARTITION, "metric", "row_id")
_SEPARATOR = "\0"
_MINUTE_US = 60_000_000


@dataclass(frozen=True)
class MetricBuckets:
    """Buckets, as columns. A bucket has the aggregates of one series over a minute, hour or day.

    Attributes:
        series: one row per series: topic, session_id, partition, metric, row_id.
        series_row: for each bucket, the index of its series in `series`.
        end: for each bucket, the minute since 1970 at which it ends.
        length: for each bucket, its length in minutes.
        columns: for each aggregate of `gold.metrics_1m`, by name, an array with one value per bucket.
    """

    series: pa.Table
    series_row: Int64s
    end: Int64s
    length: Int64s
    columns: Columns

    def select_buckets_of_series(self, is_selected: Bools) -> MetricBuckets:
        """Returns the buckets of some series.

        Args:
            is_selected: for each row of `series`, True to keep the buckets of this series.
        """
        is_chosen = is_selected[self.series_row]
        number = np.cumsum(is_selected) - 1
        columns = {name: column[is_chosen] for name, column in self.columns.items()}
        series = self.series.filter(pa.array(is_selected))
        return MetricBuckets(
            series, number[self.series_row[is_chosen]], self.end[is_chosen], self.length[is_chosen], columns
        )


def build_metric_buckets_from_rows(
    rows_by_bucket_length: Iterable[tuple[int, pa.Table]], columns: Sequence[str], keys: pa.Table | None
) -> MetricBuckets:
    """Converts rows of `gold.metrics_1m`, `metrics_1h` and `metrics_1d` to buckets.

    Args:
        rows_by_bucket_length: pairs of a bucket length in minutes and rows of the table with this length.
        columns: names of the aggregates to keep.
        keys: the keys to keep, one row per key, with some columns of `MetricBuckets.series`; None to keep all.
    """
    numbers: dict[str, int] = {}
    row, end, length = list[Int64s](), list[Int64s](), list[Int64s]()
    parts_of = {name: list[Any]() for name in columns}
    for minutes, table in rows_by_bucket_length:
        # Joined to one text, because encoding each column by itself takes a fifth longer.
        code, named = encode_values_as_codes(
            pc.binary_join_element_wise(*(_convert_to_texts(table[name]) for name in _SERIES), _SEPARATOR)
        )
        known = np.array([numbers.setdefault(name, len(numbers)) for name in named.to_pylist()], np.int64)
        row.append(known[code])
        end.append(table[START].cast(pa.int64()).to_numpy() // _MINUTE_US + minutes)
        length.append(np.full(table.num_rows, minutes))
        for name in columns:
            parts_of[name].append(table[name].to_numpy())
    names = [name.split(_SEPARATOR, len(_SERIES) - 1) for name in numbers]
    series = pa.table([pa.array([name[i] for name in names], pa.string()) for i in range(len(_SERIES))], list(_SERIES))
    place = _SERIES.index(PARTITION)
    series = series.set_column(place, PARTITION, series[PARTITION].cast(pa.int32()))
    joined = {name: _concatenate_or_empty(parts_of.pop(name)) for name in columns}
    buckets = MetricBuckets(
        series, _concatenate_or_empty(row), _concatenate_or_empty(end), _concatenate_or_empty(length), joined
    )
    if keys is None:
        return buckets
    wanted_keys = {*zip(*(keys[name].to_pylist() for name in keys.column_names), strict=True)}
    series_keys = zip(*(series[name].to_pylist() for name in keys.column_names), strict=True)
    return buckets.select_buckets_of_series(np.array([key in wanted_keys for key in series_keys], np.bool_))


def _convert_to_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Returns a column's values as texts. Each distinct integer is formatted only once."""
    if not pa.types.is_integer(column.type):
        return column
    code, distinct = encode_values_as_codes(column)
    return distinct.cast(pa.string()).take(pa.array(code))


def _concatenate_or_empty(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenates arrays; without any, returns an empty array of int64."""
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class RuleKeys:
    """For each of some series, the rule's key to which the series belongs.

    Attributes:
        code: for each series, the index of its key in `table`.
        table: one row per key, with the rule's key columns.
    """

    code: Int64s
    table: pa.Table

    @staticmethod
    def from_series(series: pa.Table, by: tuple[str, ...]) -> RuleKeys:
        """Computes the keys of series.

        Args:
            series: one row per series, as in `MetricBuckets.series`.
            by: the rule's key columns.
        """
        groups = RowGroups.group_rows(series, by)
        return RuleKeys(
            groups.group_number_of_each_row, series.select(list(by)).take(pa.array(groups.first_row_indices))
        )


def select_series(series: pa.Table, selection: Selection, metric: str) -> Bools:
    """Returns True for each series whose numbers a window of a rule contains.

    Args:
        series: one row per series, as in `MetricBuckets.series`.
        selection: the topics and row ids that the window reads.
        metric: the declared column that the window reads.
    """
    topic = map_distinct_texts(series["topic"], selection.includes_topic)
    row = (
        map_distinct_texts(series["row_id"], selection.includes_row)
        if selection.rows
        else np.ones(len(topic), np.bool_)
    )
    return topic & row & map_distinct_texts(series["metric"], metric.__eq__)


def map_distinct_texts(column: pa.ChunkedArray, predicate: Callable[[str], bool]) -> Bools:
    """Returns the result of `predicate` for each text in a column without nulls. Calls it once per distinct text."""
    code, distinct = encode_values_as_codes(column)
    return np.array([predicate(value) for value in distinct.to_pylist()], np.bool_)[code]
