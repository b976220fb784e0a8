"""Selects the changes that set a number, with the columns that the fold of averages needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, SESSION_MARK, TURN
from sessionlake.gold.aggregate.sources import (
    DeclaredColumns,
    build_decimal_column_name,
    build_number_column_name,
    select_changes_of_feed,
)
from sessionlake.gold.fold.pack import SEPARATOR, combine_partition_and_offset, have_any_non_null_value
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.arrow import number_distinct_combinations

_AS_THEY_ARE = ("partition", "offset", "kafka_ms", "ts", "ordinal")


def select_changes_with_points(
    changes: pa.Table | None, declared: DeclaredColumns, series: RollingAverage
) -> pa.Table | None:
    """Selects the changes that set a number, in the topics that a table of averages reads; None if there are none.

    Returns:
        The changes with the columns `owner` and `row`, both dictionary-encoded: the owner's keys, and the series' keys
        without the metric, each joined by a zero byte. Also `partition, offset, kafka_ms, ts, ordinal, position`, and
        `value:<i>` and `decimal:<i>`, null where the declared number or decimal `i` was not set. If some changes are of
        class `once`, also the columns `_life`, `_seq` and, across sessions, `_session`, which order points of equal
        event time.
    """
    values = [build_number_column_name(i) for i in range(len(declared.numbers))]
    if changes is None or not values:
        return None
    changes = select_changes_of_feed(changes, series.topics)
    points = changes.filter(have_any_non_null_value(changes, values))
    if not points.num_rows:
        return None
    position = points["position"]
    if not series.is_per_session:
        position = pa.array(
            combine_partition_and_offset(points["partition"].to_numpy().astype(np.int64), points["offset"].to_numpy())
        )
    row = _join_key_values(points, [name for name in series.keys if name != "metric"])
    owner = _join_key_values(points, series.owner_columns) if series.is_per_session else row
    columns = {"owner": owner, "row": row, "position": position} | _build_seq_order_columns(points, series)
    decimals = map(build_decimal_column_name, range(len(declared.decimals)))
    return pa.table(columns | {name: points[name] for name in (*_AS_THEY_ARE, *values, *decimals)})


def _build_seq_order_columns(points: pa.Table, series: RollingAverage) -> dict[str, pa.ChunkedArray]:
    """Returns the columns that order points of class `once`, by name; null for points of other classes.

    The result is empty if no point is of class `once`.
    """
    none = pc.equal(points[LIFE], NO_LIFE)
    if pc.all(none).as_py():
        return {}
    found = {"_life": points[LIFE], "_seq": points[TURN]}
    if not series.is_per_session and SESSION_MARK in points.column_names:
        found["_session"] = points[SESSION_MARK]
    return {name: pc.if_else(none, None, column) for name, column in found.items()}


def _join_key_values(table: pa.Table, names: Sequence[str]) -> pa.DictionaryArray:
    """Joins columns without nulls to one dictionary-encoded column of texts, with a zero byte between the values."""
    number, parts = number_distinct_combinations(*(table[name] for name in names))
    joined = pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), SEPARATOR)
    return pa.DictionaryArray.from_arrays(pa.array(number.astype(np.int32)), joined)
