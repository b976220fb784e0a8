"""The gold fold: takes a shard's state and a batch's changes, and returns the new state and rows of gold's tables.

It does not use Spark. All data is in columns, so its cost is per batch, not per point. If a batch has changes for a
shard, the shard's whole state is decoded and encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.late import find_stream_times_by_partition
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import (
    PARTITION,
    DeclaredColumns,
    build_decimal_column_name,
    build_number_column_name,
)
from sessionlake.gold.fold.outputs import (
    EmittedPayload,
    GetKeyColumns,
    PointSourceMessages,
    append_report_payload,
    create_average_payloads,
)
from sessionlake.gold.fold.pack import SEPARATOR, DecodedChunks
from sessionlake.gold.fold.point_changes import select_changes_with_points
from sessionlake.gold.fold.points import OlderPoints, PointSeqOrder, PointSet
from sessionlake.gold.fold.product_payloads import create_product_payloads
from sessionlake.gold.fold.rolling import fold_points
from sessionlake.gold.fold.series import OF_SESSION, RollingAverage
from sessionlake.gold.fold.state import (
    ForgottenSeriesOwners,
    GoldShardState,
    SeriesOwners,
    decode_states,
    encode_states,
)
from sessionlake.gold.fold.unscaled_decimals import UnscaledDecimals
from sessionlake.protocol.arrow import convert_to_contiguous_array, encode_values_as_codes, number_distinct_combinations
from sessionlake.protocol.types import Bools, Int64s, TopicPartition

_OF_TOPIC = -1  # partition of an owner across sessions
_APART = 120


def count_kept_points_per_series(series: RollingAverage) -> int:
    """Returns how many of the newest points of each series the state keeps.

    They suffice for an average, and for points that are late by about half a window. Series across sessions keep more,
    because their sessions may send at different times.
    """
    return series.window_points + (
        max(4, series.window_points // 2) if series.is_per_session else max(_APART, series.window_points)
    )


@dataclass(frozen=True)
class TrackedAverageTable:
    """A table of averages that the gold stream maintains, and what its states start from after a rebuild.

    Attributes:
        series: The table's declaration.
        rebuild_id: Id of the table's last rebuild; empty if it was never rebuilt. States with another id are ignored.
        owners_at_rebuild: Function that returns the owners (sessions, or rows across sessions) that a shard had at the
            rebuild. The rows are `mark uint64, newest bigint`: the hash of the name, by which they are sorted, and the
            latest event time in ms. None if the table was never rebuilt.
    """

    series: RollingAverage
    rebuild_id: str = ""
    owners_at_rebuild: Callable[[int], pa.Table] | None = None

    def create_initial_state(self, shard: int, metrics: tuple[str, ...]) -> GoldShardState:
        """Returns the initial state of a shard, which knows only the owners that the table had at its last rebuild.

        Args:
            shard: Number of the shard.
            metrics: Names of the declared columns of numbers.
        """
        state = GoldShardState.create_empty(self.rebuild_id, metrics)
        if self.owners_at_rebuild is None:
            return state
        own = self.owners_at_rebuild(shard)
        return replace(state, forgotten=ForgottenSeriesOwners(own["mark"].to_numpy(), own["newest"].to_numpy()))


@dataclass(frozen=True)
class GoldShardFold:
    """Computes rows of gold's tables from one shard's changes and state. It is called for each shard and batch.

    The state has the newest points of each of the shard's series.

    Attributes:
        declared: The declared columns that changes have.
        tracked: The tables of averages.
        products: The products, each after the product from which it is computed.
        idle_ms: How long a session may be idle before its tails are dropped, in ms of its topic-partition's Kafka time.
        row_idle_ms: How long a row may be idle before the tails of its series across sessions are dropped, in ms of its
            topic's Kafka time.
    """

    declared: DeclaredColumns
    tracked: tuple[TrackedAverageTable, ...]
    products: tuple[Product, ...]
    idle_ms: int
    row_idle_ms: int

    def __call__(
        self, shard: int, state: bytes | None, chunks: list[bytes]
    ) -> tuple[bytes | None, list[tuple[str, bytes | pa.Table]]]:
        """Folds a batch's chunks into a shard's state.

        Returns:
            The new state, None if it has not changed. Then the payloads, as pairs of kind and content.
        """
        found = DecodedChunks.decode_chunks(chunks)
        states = decode_states(state)
        held = {
            tracked.series.name: states[tracked.series.name]
            for tracked in self.tracked
            if tracked.series.name in states
        }
        rows, points, is_changed = list[EmittedPayload](), 0, False
        for tracked in self.tracked:
            name = tracked.series.name
            changes = select_changes_with_points(
                found.changes.get(tracked.series.owner_columns), self.declared, tracked.series
            )
            if changes is not None:
                held[name], payloads, new = self._fold_table_of_averages(tracked, shard, held.get(name), changes)
                rows, points, is_changed = [*rows, *payloads], points + new, True
        times: dict[TopicPartition, int] = {}
        if OF_SESSION in found.changes:
            rows += (
                create_product_payloads(found.changes[OF_SESSION], self.declared, self.products)
                if self.products
                else []
            )
            times = find_stream_times_by_partition(found.changes[OF_SESSION])
        return encode_states(held) if is_changed else None, append_report_payload(found.read, points, rows, times)

    def _fold_table_of_averages(
        self, tracked: TrackedAverageTable, shard: int, state: bytes | None, changes: pa.Table
    ) -> tuple[bytes, list[EmittedPayload], int]:
        """Computes the rows that changes from `select_changes_with_points` add to a table of averages, or change in it.

        Returns:
            The table's new state, its payloads, and the number of points in the changes.
        """
        series = tracked.series
        before = GoldShardState.decode_state(state) if state else None
        if before is None or before.rebuild_id != tracked.rebuild_id:
            before = tracked.create_initial_state(shard, self.declared.numbers)
        known, row = _add_rows_of_changes_to_state(
            before.renumber_series_for_metrics(self.declared.numbers), changes, series
        )
        new, causes = self._read_points(changes, row)
        touched, code = np.unique(new.key, return_inverse=True)
        new = new.with_series_codes(code.reshape(-1))
        place = np.full(len(known.older), -1)
        place[touched] = np.arange(len(touched))
        apart = place[known.tail.key] < 0
        base = known.tail.select_points(~apart)
        found = fold_points(
            base.with_series_codes(place[base.key]),
            known.older.select_series(touched),
            new,
            series=series,
            kept_points=count_kept_points_per_series(series),
        )
        tail = PointSet.concat_points(
            known.tail.select_points(apart), found.tail.with_series_codes(touched[found.tail.key])
        )
        after = replace(known, tail=tail, older=known.older.replace_series(touched, found.older))
        rows = create_average_payloads(
            series, found, new, causes, _create_key_column_function(series, after.rows, self.declared.numbers, touched)
        )
        idle_ms = self.idle_ms if series.is_per_session else self.row_idle_ms
        return (
            after.forget_idle_owners(idle_ms, _get_topic_of_owner).forget_owners_beyond_limits().encode_state(),
            rows,
            len(new),
        )

    def _read_points(self, changes: pa.Table, row_indices: Int64s) -> tuple[PointSet, PointSourceMessages]:
        ts, position, ordinal = (_convert_to_int64s(changes[name]) for name in ("ts", "position", "ordinal"))
        by_seq = PointSeqOrder.from_table(changes)
        parts, places = [PointSet.create_empty()], [np.empty(0, np.int64)]
        for metric, name in enumerate(self.declared.numbers):
            value = changes[build_number_column_name(metric)].to_numpy()
            is_set = ~np.isnan(value)  # a null is read as NaN
            key = row_indices[is_set] * len(self.declared.numbers) + metric
            order = None if by_seq is None else by_seq.select_points(is_set)
            units = self._read_unscaled_decimals(changes, name, is_set)
            part = key, ts[is_set], position[is_set], ordinal[is_set], value[is_set], order, units
            parts.append(PointSet.create_unpublished_points(*part))
            places.append(np.flatnonzero(is_set))
        place = np.concatenate(places)
        return PointSet.concat_points(*parts), PointSourceMessages(
            _convert_to_int64s(changes["partition"])[place], _convert_to_int64s(changes["offset"])[place]
        )

    def _read_unscaled_decimals(self, changes: pa.Table, column: str, is_set: Bools) -> UnscaledDecimals | None:
        """Returns the exact values that changes set in a column; None if it is not a decimal column."""
        if column not in self.declared.decimals:
            return None
        values = changes[build_decimal_column_name(self.declared.decimals.index(column))]
        return UnscaledDecimals.from_decimals(convert_to_contiguous_array(values)).select_points(is_set)


def recompute_averages(points: pa.Table, series: RollingAverage) -> list[EmittedPayload]:
    """Computes the averages that new points add or change, from all points of their series.

    Args:
        points: The new points, where `fresh` is True, and all points of their series in the table. The table's points
            may include the new ones. Columns: the series' keys, `ts, place, ordinal, value, revision, partition,
            offset, fresh`, `RollingAverage.seq_order_columns`, and for decimals `series.EXACT`. `partition` and
            `offset` are read only of new points.
        series: The table of averages.
    """
    key, parts = number_distinct_combinations(*(points[name] for name in series.keys))
    known = dict(zip(series.keys, parts, strict=True))
    if PARTITION in known:
        known[PARTITION] = known[PARTITION].cast(pa.int32())
    ts, position = _convert_to_int64s(points["ts"]), _convert_to_int64s(points["place"])
    value, revision = points["value"].to_numpy(), _convert_to_int64s(points["revision"])
    parted = PointSeqOrder.from_table(points), UnscaledDecimals.from_table(points)
    every = PointSet(key, ts, position, _convert_to_int64s(points["ordinal"]), value, revision, *parted)
    fresh = points["fresh"].to_numpy()
    new = every.select_points(fresh)
    causes = PointSourceMessages(
        *(_convert_to_int64s(points[name].filter(points["fresh"])) for name in ("partition", "offset"))
    )
    base = every.select_points(~fresh).without_points(new)
    found = fold_points(
        base, OlderPoints.create_without_older_points(len(parts[0])), new, series=series, kept_points=len(every)
    )

    def create_key_columns(keys: Int64s) -> dict[str, pa.Array]:
        return {name: part.take(pa.array(keys)) for name, part in known.items()}

    return create_average_payloads(series, found, new, causes, create_key_columns)


def _add_rows_of_changes_to_state(
    state: GoldShardState, changes: pa.Table, series: RollingAverage
) -> tuple[GoldShardState, Int64s]:
    """Adds the owners and rows of changes to a state. A row stands for all series that differ only in the metric.

    Returns:
        The new state, and for each change the index of its row in the state.
    """
    owners, owner = _add_owners_of_changes_to_state(state, changes, series)
    rows, row = _add_new_names(state.rows, changes["row"])
    of_row = np.concatenate([state.owner, np.zeros(len(rows) - len(state.rows), np.int64)])
    of_row[row] = owner
    added = of_row[len(state.rows) :]
    width = len(state.metrics)
    older = OlderPoints.create_with_forgotten_points(
        np.repeat(owners.back[added], width), np.repeat(owners.floor[added], width)
    )
    return replace(
        state, owners=owners, rows=rows, owner=of_row, older=OlderPoints.concat_series(state.older, older)
    ), row


def _add_owners_of_changes_to_state(
    state: GoldShardState, changes: pa.Table, series: RollingAverage
) -> tuple[SeriesOwners, Int64s]:
    known = state.owners
    names, owner = _add_new_names(known.name, changes["owner"])
    added = len(names) - len(known.name)
    back, floor = state.forgotten.find_forgotten_owners(names.slice(len(known.name)).to_pylist())
    never = np.full(added, np.iinfo(np.int64).min)
    partition = np.concatenate([known.partition, np.zeros(added, np.int64)])
    seen, newest = np.concatenate([known.seen, never]), np.concatenate([known.newest, never])
    partition[owner] = _convert_to_int64s(changes["partition"]) if series.is_per_session else _OF_TOPIC
    np.maximum.at(seen, owner, _convert_to_int64s(changes["kafka_ms"]))
    np.maximum.at(newest, owner, _convert_to_int64s(changes["ts"]))
    back, floor = np.concatenate([known.back, back]), np.concatenate([known.floor, floor])
    return SeriesOwners(names, partition, seen, newest, back, floor), owner


def _add_new_names(known_names: pa.Array, column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    """Extends a list of names by the new names in a column.

    Args:
        known_names: The names so far.
        column: A dictionary-encoded column of names.

    Returns:
        The extended list, which starts with the known names. Then, for each row of the column, the index of its name.
    """
    values = convert_to_contiguous_array(column)
    encoded = pa.concat_arrays([known_names, values.dictionary]).dictionary_encode()
    return encoded.dictionary, _convert_to_int64s(encoded.indices)[len(known_names) :][values.indices.to_numpy()]


def _create_key_column_function(
    series: RollingAverage, rows: pa.Array, metrics: tuple[str, ...], touched_series: Int64s
) -> GetKeyColumns:
    """Returns a function from indices in `touched_series` to the key columns of these series, by name.

    Args:
        series: The table of averages.
        rows: The names of the state's rows: the series' keys without the metric, joined.
        metrics: Names of the declared columns of numbers.
        touched_series: Codes of the series that have new points, sorted.
    """
    row, metric = np.divmod(touched_series, max(len(metrics), 1))
    starts_row = np.diff(row, prepend=-1) > 0
    place = np.cumsum(starts_row) - 1
    own = [name for name in series.keys if name != "metric"]
    parts = pc.split_pattern(rows.take(pa.array(row[starts_row])), SEPARATOR, max_splits=len(own) - 1).flatten()
    texts = {
        name: encode_values_as_codes(parts.take(pa.array(np.arange(i, len(parts), len(own)))))
        for i, name in enumerate(own)
    }
    of_key = {name: (code[place], known) for name, (code, known) in texts.items()}
    of_key["metric"] = metric, pa.array(metrics, pa.string())

    def create_key_columns(keys: Int64s) -> dict[str, pa.Array]:
        return {name: _create_key_column(name, of_key[name][0][keys], of_key[name][1]) for name in series.keys}

    return create_key_columns


def _create_key_column(name: str, value_indices: Int64s, values: pa.Array) -> pa.Array:
    """Returns a key column of series: the items of `values` at `value_indices`; integers for `partition`."""
    return (
        values.cast(pa.int32()).take(pa.array(value_indices))
        if name == PARTITION
        else _encode_used_texts(value_indices, values)
    )


def _encode_used_texts(text_indices: Int64s, texts: pa.Array) -> pa.DictionaryArray:
    """Returns the items of `texts` at `text_indices`. The result's dictionary has only the texts that occur."""
    used = np.zeros(len(texts), np.bool_)
    used[text_indices] = True
    if not used.all():
        text_indices, texts = (np.cumsum(used) - 1)[text_indices], texts.filter(pa.array(used))
    return pa.DictionaryArray.from_arrays(pa.array(text_indices.astype(np.int32)), texts)


def _get_topic_of_owner(owner: str) -> str:
    return owner.partition(SEPARATOR)[0]


def _convert_to_int64s(column: Any) -> Int64s:
    return np.asarray(column).astype(np.int64)
