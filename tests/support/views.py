"""Compares gold's views over known messages with results in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from sessionlake.cli.engines.sail import SailEngine
from sessionlake.cli.query import fetch_query_result
from sessionlake.cli.show import Rows, convert_to_names_and_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, DATA_QUALITY, LEDGER, QUARANTINE, SESSION_SUMMARY, SILVER, VIEWS
from sessionlake.gold.sql.views import create_views
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import Settings
from sessionlake_lab.truth import ExpectedTables
from support.engines import EnginePair
from support.folding import truth_of
from support.lakes import rows_of
from support.streams import Fact, messages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
HOUR = 3_600_000
_TAKEN = ("status", "messages", "duplicates", "gaps", "late", "first_ts", "last_ts", "first_offset", "last_offset")


def assert_views_are_the_truth(
    spark: SparkSession, settings: Settings, judged: Sequence[Fact], waiting: Sequence[Fact]
) -> None:
    """Checks every row of every view.

    Args:
        spark: The session.
        settings: Settings of the lake.
        judged: Messages that silver has read and merged.
        waiting: All other messages.
    """
    truth = truth_of(judged, settings.capture)
    found = {tuple(row[name] for name in SESSION): row for row in _asked(spark, settings, SESSION_SUMMARY)}
    summaries = {key: _summary(truth, session) for key, session in truth.sessions.items()}
    assert {key: {name: row[name] for name in summaries[key]} for key, row in found.items()} == summaries
    assert sum(row["lost"] and row["quarantined"] for row in summaries.values())  # the streams must have both
    quality = {(row["topic"], row["hour"].timestamp() * 1000): row for row in _asked(spark, settings, DATA_QUALITY)}
    if settings.catalog is None:  # Spark's own catalog does not support table functions in a schema
        since = sorted({row["hour"] for row in quality.values()})[1]
        sql = "SELECT * FROM data_quality_since(timestamp_micros({:.0f}))"
        late = _named(*fetch_query_result(spark, settings, sql.format(since.timestamp() * 1e6 + 1)))
        assert sorted(map(repr, late)) == sorted(repr(row) for row in quality.values() if row["hour"] >= since)
    if settings.catalog is None:
        with SailEngine(settings) as sail:
            both = EnginePair(spark, sail, settings, [])
            assert [both.compare(f"SELECT * FROM {view}") for view in VIEWS] == [None, None]  # noqa: S608 - names of our own views
    fresh = _freshness(spark, settings)
    expected = _quality(truth, messages_of(judged), messages_of(waiting))
    assert {key: {name: row[name] for name in expected[key]} for key, row in quality.items()} == expected
    for key, row in quality.items():
        assert row["used"] == row["messages"] - row["waiting"] - row["duplicates"] - row["quarantined"]
        assert (row["freshness_mean"], row["freshness_max"]) == (
            (pytest.approx(fmean(fresh[key])), pytest.approx(max(fresh[key]))) if key in fresh else (None, None)
        )


def _asked(spark: SparkSession, settings: Settings, view: str) -> list[Row]:
    lake = Lake(settings)
    create_views(spark, lake, [view])
    return _named(
        *convert_to_names_and_rows(spark.table(lake.storage.create_view_schema_and_get_name(spark, view)).toArrow())
    )


def _named(names: list[str], rows: Rows) -> list[Row]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def _summary(truth: ExpectedTables, session: Row) -> Row:
    key = tuple(session[name] for name in SESSION)

    def own(rows: list[Row]) -> list[Row]:
        mine = (row for row in rows if tuple(row[name] for name in SESSION) == key and row["offset"] is not None)
        return [row for row in mine if row["offset"] >= session["first_offset"]]

    gaps = [event for event in own(truth.integrity_events) if event["event"] == "gap"]
    if session["topic"].startswith("capture.once"):  # the class has one event when a gap shows, and one when it is due
        gaps = [event for event in gaps if event["action"] != "applied"]
    known = session["first_ts"] is not None
    duration = session["last_ts"] - session["first_ts"] if known else None
    return {name: session[name] for name in _TAKEN} | {
        "duration_ms": duration if known and abs(duration) < 2**63 else None,
        "rows": len(truth.session_rows.get(key, {})),
        "lost": min(sum(event["actual_seq"] - event["expected_seq"] for event in gaps), 2**63 - 1),
        "quarantined": len(own(truth.quarantine)),
    }


def _quality(truth: ExpectedTables, judged: Sequence[Fact], waiting: Sequence[Fact]) -> dict[tuple[str, float], Row]:
    arrived = Counter(_hour(message.topic, message.timestamp) for message in (*judged, *waiting))
    left = Counter(_hour(message.topic, message.timestamp) for message in waiting)
    events: defaultdict[tuple[str, float], Counter[str]] = defaultdict(Counter)
    for row in (row for row in truth.integrity_events if row["kafka_timestamp"] is not None):
        events[_hour(row["topic"], row["kafka_timestamp"])][row["event"]] += 1
    reasons: defaultdict[tuple[str, float], Counter[str]] = defaultdict(Counter)
    for row in truth.quarantine:
        reasons[_hour(row["topic"], row["timestamp"])][row["reason"]] += 1
    return {
        key: {
            "messages": count,
            "waiting": left[key],
            "duplicates": events[key]["duplicate"],
            "quarantined": reasons[key].total(),
            "events": {kind: n for kind, n in events[key].items() if n},
            "reasons": dict(reasons[key]),
        }
        for key, count in arrived.items()
    }


def _freshness(spark: SparkSession, settings: Settings) -> dict[tuple[str, float], list[float]]:
    lake = Lake(settings)
    committed = {row["batch_id"]: row["committed_at"] for row in rows_of(spark, lake, LEDGER) if row["layer"] == SILVER}
    found: defaultdict[tuple[str, float], list[float]] = defaultdict(list)
    came = [row for row in rows_of(spark, lake, CHANGES) if row["ordinal"] == 0] + rows_of(spark, lake, QUARANTINE)
    for row in came:
        at = row["kafka_timestamp"]
        found[_hour(row["topic"], at.timestamp() * 1000)].append((committed[row["_batch"]] - at).total_seconds())
    return found


def _hour(topic: str, ms: float) -> tuple[str, float]:
    return topic, ms // HOUR * HOUR
