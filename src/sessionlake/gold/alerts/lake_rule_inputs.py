"""Reads the data that rules need from gold's and silver's tables."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.names import CHANGES, DISTINCT_VALUES, RULE_EVENTS, RULE_MATCHES
from sessionlake.delta.storage.far_times import convert_time_to_ms, find_nearest_datetime
from sessionlake.delta.storage.reading import Condition, TableReader, build_key_conditions, is_in
from sessionlake.gold.aggregate.order import LIFE, SEQ, OnceTopics, add_change_order_columns
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import (
    PARTITION,
    POINT_KEY,
    TEXTS,
    DeclaredColumns,
    build_number_column_name,
    build_text_column_name,
)
from sessionlake.gold.aggregate.standard import METRICS_1D, METRICS_1H, METRICS_1M
from sessionlake.gold.rules.alerts import KEY, RETRACTED, Alert, StreamTimes, read_rule_key_of_row
from sessionlake.gold.rules.buckets import DAY, HOUR, MINUTE
from sessionlake.gold.rules.condition_tree import MINUTE_MS, FieldIs, find_comparisons
from sessionlake.gold.rules.metric_buckets import MetricBuckets, build_metric_buckets_from_rows
from sessionlake.gold.rules.patterns import MATCH, Event, filter_matches_by_keys
from sessionlake.gold.rules.rule_inputs import BucketQuery, RuleInputs
from sessionlake.protocol.arrow import convert_to_double_column
from sessionlake.protocol.years import FIRST_MS, LAST_MS

# Up to this many values are pushed down as a filter on files.
_MAX_FILTER_VALUES = 1_000
_TIER_TABLES = {MINUTE: METRICS_1M, HOUR: METRICS_1H, DAY: METRICS_1D}
_CHANGE_COLUMNS = ("topic", "session_id", "row_id", PARTITION, "_ts", "_position", "ordinal", "change", "_set")


@dataclass(frozen=True)
class LakeRuleInputs(RuleInputs):
    """Reads the buckets, matches and logged alerts that rules need from gold's tables."""

    reader: TableReader

    def count_series_per_day(self, topics: frozenset[str] | None, keys: pa.Table | None) -> dict[int, int]:
        found: dict[int, int] = {}
        conditions = _build_topic_and_key_conditions(topics, keys)
        for (topic, start), count in self.reader.count_rows_by(
            METRICS_1D.table_name, ["topic", START], *conditions
        ).items():
            if topics is None or topic in topics:
                day = convert_time_to_ms(start) // MINUTE_MS
                found[day] = found.get(day, 0) + count
        return found

    def read_buckets(self, query: BucketQuery) -> MetricBuckets:
        return build_metric_buckets_from_rows(self._read_bucket_rows(query), query.columns, query.keys)

    def _read_bucket_rows(self, query: BucketQuery) -> Iterator[tuple[int, pa.Table]]:
        conditions = _build_topic_and_key_conditions(query.topics, query.keys)
        for length, ranges in query.ends.items():
            for low, high in ranges:
                if low >= high:
                    continue
                within = (
                    (START, operator.ge, find_nearest_datetime(low * MINUTE_MS)),
                    (START, operator.lt, find_nearest_datetime(high * MINUTE_MS)),
                )
                columns = [*POINT_KEY, PARTITION, START, *query.columns]
                for batch in self.reader.read_batches(
                    _TIER_TABLES[length].table_name, *within, *conditions, columns=columns
                ):
                    rows = pa.Table.from_batches([batch])
                    if query.topics is not None and len(query.topics) > _MAX_FILTER_VALUES:
                        rows = rows.filter(pc.is_in(rows["topic"], pa.array(sorted(query.topics))))
                    yield length, rows

    def read_pattern_matches(self, event_ids: Sequence[str], since_ms: int | None) -> pa.Table:
        since = [] if since_ms is None else [("ts", operator.ge, since_ms)]
        batches = self.reader.read_batches(
            RULE_MATCHES, *_build_is_in_conditions("event", event_ids), *since, columns=MATCH.names
        )
        return _create_match_table(batches)

    def read_pattern_matches_of_keys(self, event_ids: Sequence[str], since_ms: int | None, keys: pa.Table) -> pa.Table:
        since = [] if since_ms is None else [("ts", operator.ge, since_ms)]
        batches = self.reader.read_batches(
            RULE_MATCHES, *_build_is_in_conditions("event", event_ids), *since, columns=MATCH.names
        )
        return pa.concat_tables(
            [MATCH.empty_table(), *(filter_matches_by_keys(_create_match_table([batch]), keys) for batch in batches)]
        )

    def read_alert_log(self, rule_names: Sequence[str], first_ms: int, last_ms: int) -> Iterator[tuple[Alert, bool]]:
        within = (
            ("window_end", operator.ge, find_nearest_datetime(first_ms)),
            ("window_end", operator.le, find_nearest_datetime(last_ms)),
        )
        columns = ["rule", *KEY, "window_end", "event", "retracts"]
        for row in self.reader.read_rows(
            RULE_EVENTS, *within, *_build_is_in_conditions("rule", rule_names), columns=columns
        ):
            retracted = row["event"] == RETRACTED
            event = row["retracts"] if retracted else row["event"]
            at = convert_time_to_ms(row["window_end"])
            yield Alert(row["rule"], read_rule_key_of_row(KEY, row), at, event), retracted


def read_stream_times(reader: TableReader, declared: DeclaredColumns) -> StreamTimes:
    """Returns the stream time of every topic, computed from the event times in gold's tables."""
    found: dict[str, int] = {}
    for batch in reader.read_batches(METRICS_1D.table_name, columns=["topic", "_last_ts"]):
        update_stream_times(found, pa.Table.from_batches([batch]), "_last_ts")
    texts = reader.read_batches(DISTINCT_VALUES, columns=["topic", "first_ts", "last_ts"])
    update_stream_times_from_distinct_values(
        found, (pa.Table.from_batches([batch]) for batch in texts), reader, declared
    )
    return found


def update_stream_times_from_distinct_values(
    times: dict[str, int],
    distinct_value_rows: Iterable[pa.Table],
    reader: TableReader,
    declared: DeclaredColumns,
    *conditions: Condition,
) -> None:
    """Raises each topic's stream time to the highest event time in some rows of `gold.distinct_values`.

    Event times outside the range of a timestamp do not count.

    Args:
        times: stream time of each topic in ms; changed in place.
        distinct_value_rows: rows of `gold.distinct_values`.
        reader: reads silver's changes.
        declared: the declared columns.
        conditions: select the changes from which these rows were computed. The changes are read only if the last event
            time of a row does not count, to find the last one that does.
    """
    unknown = False
    for rows in distinct_value_rows:
        first, last = rows["first_ts"].to_numpy(), rows["last_ts"].to_numpy()
        update_stream_times(times, rows.filter(pa.array((last >= FIRST_MS) & (last <= LAST_MS))), "last_ts")
        unknown = unknown or bool(((first <= LAST_MS) & (last > LAST_MS)).any())
    if unknown:
        within = (("_ts", operator.ge, FIRST_MS), ("_ts", operator.le, LAST_MS))
        for batch in reader.read_batches(CHANGES, *conditions, *within, columns=[*_CHANGE_COLUMNS, *declared.texts]):
            changes = _rename_changes_for_patterns(pa.Table.from_batches([batch]), declared, declared.texts)
            update_stream_times(times, TEXTS.extract_events(changes, declared), "ts")


def update_stream_times(times: dict[str, int], rows: pa.Table, time_column: str) -> None:
    """Raises each topic's stream time to the highest event time in a column of a table.

    Args:
        times: stream time of each topic in ms; changed in place.
        rows: rows with `topic` and the column `time_column`.
        time_column: name of the column, which has event times in ms.
    """
    for topic, ts in zip(*rows.group_by(["topic"]).aggregate([(time_column, "max")]).columns, strict=True):
        times[topic.as_py()] = max(ts.as_py(), times.get(topic.as_py(), ts.as_py()))


def find_pattern_matches(
    reader: TableReader,
    events: Sequence[Event],
    declared: DeclaredColumns,
    once_topics: OnceTopics,
    *conditions: Condition,
) -> pa.Table:
    """Searches silver's changes for events of patterns. Returns the matches, with the columns of `patterns.MATCH`.

    Args:
        reader: reads silver's changes.
        events: the events to search for.
        declared: the declared columns.
        once_topics: decides which topics have the integrity class `once_topics`.
        conditions: select the changes to search.
    """
    seqs = ["_life", "_seq"] if once_topics.is_once_configured else []
    columns = {
        leaf.column for event in events for leaf in find_comparisons(event.condition) if isinstance(leaf, FieldIs)
    }
    columns |= {event.column for event in events if event.column is not None}
    found = [MATCH.empty_table()]
    for batch in reader.read_batches(CHANGES, *conditions, columns=[*_CHANGE_COLUMNS, *seqs, *sorted(columns)]):
        changes = _rename_changes_for_patterns(pa.Table.from_batches([batch]), declared, columns, once_topics)
        found += [event.find_event_matches(changes, declared) for event in events]
    return pa.concat_tables(found)


def _rename_changes_for_patterns(
    rows: pa.Table, declared: DeclaredColumns, columns: Iterable[str], once_topics: OnceTopics | None = None
) -> pa.Table:
    """Returns rows of silver's changes with the column names that `find_event_matches` reads, without `clear` rows.

    Args:
        rows: rows of `silver.session_changes`.
        declared: the declared columns.
        columns: the names of the declared columns to include.
        once_topics: decides which topics have the integrity class `once_topics`; None if no topic has it.
    """
    rows = rows.filter(pc.not_equal(rows["change"], "clear")).combine_chunks()
    upsert = pc.equal(rows["change"], "upsert").to_numpy()
    made = {name: rows[name] for name in ("topic", "session_id", "row_id", PARTITION)}
    made |= {"ts": rows["_ts"], "position": rows["_position"], "ordinal": rows["ordinal"]}
    if "_seq" in rows.column_names:
        made |= {LIFE: rows["_life"], SEQ: rows["_seq"]}
    made["deleted"] = pc.equal(rows["change"], "delete")
    flat, parent = pc.list_flatten(rows["_set"]), pc.list_parent_indices(rows["_set"]).to_numpy()
    for name in columns:
        was_set = np.zeros(rows.num_rows, np.bool_)
        was_set[parent[pc.equal(flat, name).to_numpy()]] = True
        value = pc.if_else(pa.array(was_set & upsert), rows[name], None)
        if name in declared.texts:
            made[build_text_column_name(declared.texts.index(name))] = value
        else:
            made[build_number_column_name(declared.numbers.index(name))] = convert_to_double_column(value)
    return add_change_order_columns(pa.table(made), once_topics)


def _create_match_table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    found = [pa.Table.from_batches([batch]).cast(MATCH) for batch in batches]
    return pa.concat_tables([MATCH.empty_table(), *found])


def _build_topic_and_key_conditions(topics: frozenset[str] | None, keys: pa.Table | None) -> list[Condition]:
    """Returns conditions that select all buckets of these topics and keys. They may select further buckets."""
    conditions = [] if topics is None else _build_is_in_conditions("topic", sorted(topics))
    return conditions if keys is None else [*conditions, *build_key_conditions(keys, keys.column_names, keys.schema)]


def _build_is_in_conditions(name: str, values: Sequence[str]) -> list[Condition]:
    return [(name, is_in, list(values))] if len(values) <= _MAX_FILTER_VALUES else []
