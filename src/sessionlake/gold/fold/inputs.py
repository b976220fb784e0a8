"""A shard's changes as the points of a table of averages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, SESSION_MARK, TURN
from sessionlake.gold.aggregate.sources import Declared, value_field
from sessionlake.gold.fold.pack import SEPARATOR, any_valid, place_of
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.arrow import codes

_AS_THEY_ARE = ("partition", "offset", "kafka_ms", "ts", "ordinal")


def points_in(changes: pa.Table | None, declared: Declared, series: RollingAverage) -> pa.Table | None:
    """The changes that set a number; None if there are none.

    Returns:
        `owner` and `row`, the series' owner and its keys but the metric, each joined to one text by `SEPARATOR`, as
        dictionaries; `partition, offset, kafka_ms, ts, ordinal`; `position` and, if some are of class
        `once`, `SEQ_ORDER`, by which points of one time are ordered; and
        `value:<i>`, null where number `i` was not set.
    """
    values = [value_field(i) for i in range(len(declared.numbers))]
    if changes is None or not values:
        return None
    points = changes.filter(any_valid(changes, values))
    if not points.num_rows:
        return None
    position = points["position"]
    if not series.of_session:
        position = pa.array(place_of(points["partition"].to_numpy().astype(np.int64), points["offset"].to_numpy()))
    row = _joined(points, [name for name in series.keys if name != "metric"])
    owner = _joined(points, series.owner) if series.of_session else row
    columns = {"owner": owner, "row": row, "position": position} | _seq_order(points, series)
    return pa.table(columns | {name: points[name] for name in (*_AS_THEY_ARE, *values)})


def _seq_order(points: pa.Table, series: RollingAverage) -> dict[str, pa.ChunkedArray]:
    """`SEQ_ORDER`, null where a point is not of class `once`; nothing if none is."""
    none = pc.equal(points[LIFE], NO_LIFE)
    if pc.all(none).as_py():
        return {}
    found = {"_life": points[LIFE], "_seq": points[TURN]}
    if not series.of_session and SESSION_MARK in points.column_names:
        found["_session"] = points[SESSION_MARK]
    return {name: pc.if_else(none, None, column) for name, column in found.items()}


def _joined(table: pa.Table, names: Sequence[str]) -> pa.DictionaryArray:
    """Texts joined, each combination once; null where one of them is."""
    number = np.zeros(table.num_rows, np.int64)
    for name in names:
        code, known = codes(table[name])
        number = number * (len(known) + 1) + code
    _, first, index = np.unique(number, return_index=True, return_inverse=True)
    firsts = table.select(list(names)).take(pa.array(first))
    texts = [firsts[name].cast(pa.string()) for name in names]
    joined = pc.binary_join_element_wise(*texts, SEPARATOR).combine_chunks()
    return pa.DictionaryArray.from_arrays(pa.array(index.reshape(-1).astype(np.int32)), joined)
