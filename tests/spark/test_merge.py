"""MERGE by every engine: the same rows, whatever the times in their keys and the zone of this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import ge
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.delta.commit import append_rows, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, METRICS_1M, SESSIONS
from sessionlake.delta.storage.reading import TooLargeError, is_in
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake.spark.interpreted import use_temporary_spark_conf
from support.lakes import find_table_folder, limit, rows_of

KEYS = ("topic", "window_start")
POINTS = Upsert(KEYS, ("points",))
# The first moment that there is, one before the calendar of today, an hour that Berlin has twice, and the last.
TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1558, 3, 4, tzinfo=UTC),
    datetime(2025, 10, 26, 0, tzinfo=UTC),
    datetime(2025, 10, 26, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, tzinfo=UTC),
]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def rows(points: list[int], *, gone: int | None = None) -> pa.Table:
    return pa.table(
        {
            "topic": ["a"] * len(points),
            "window_start": pa.array(TIMES[: len(points)], pa.timestamp("us", "UTC")),
            "points": points,
            DELETE: [i == gone for i in range(len(points))],
        }
    )


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("engine", "rewritten", "named"),
    [
        ("sessionlake", 100, 9),
        ("sessionlake", -1, 9),
        ("Apache-Spark", -1, 9),
        pytest.param("Apache-Spark", -1, 1, marks=pytest.mark.soak),
    ],
)
def test_a_merge_does_the_same_by_every_engine(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch, engine: str, rewritten: int, named: int
) -> None:
    limit(monkeypatch, rewritten_rows=rewritten)
    monkeypatch.setattr("sessionlake.delta.storage.spark_writes._MAX_NAMED_VALUES", named)
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [METRICS_1M])
    upsert = Upsert(KEYS, ("points",), pruned_by=KEYS[1:], deletes=True)

    def write(source: pa.Table, version: int) -> None:
        given = convert_to_spark_frame(spark, source) if engine == "Apache-Spark" else source
        merge_rows(spark, lake, METRICS_1M, given, upsert, Txn("m", version))

    for source, version in ((rows([1, 2, 3, 4]), 0), (rows([1, 2, 3, 4]), 0), (rows([5, 6, 7, 8, 9], gone=1), 1)):
        write(source, version)
    found = {row["window_start"]: row["points"] for row in rows_of(spark, lake, METRICS_1M)}
    assert found == {TIMES[0]: 5, TIMES[2]: 7, TIMES[3]: 8, TIMES[4]: 9}
    assert len(rows_of(spark, lake, METRICS_1M)) == len(found)
    [last] = lake.open_delta_table(spark, METRICS_1M).history(1).collect()
    assert last["engineInfo"].startswith(engine)


@pytest.mark.usefixtures("berlin")
def test_spark_finds_rows_by_their_times_and_takes_no_more_than_it_may(spark: Any, location: dict[str, Any]) -> None:
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [METRICS_1M])
    merge_rows(spark, lake, METRICS_1M, rows([1, 2, 3, 4, 5]), Upsert(KEYS, ("points",)), Txn("m", 0))
    reader = SparkReader(lake.storage, spark)
    for place, moment in enumerate(TIMES):
        assert reader.read_arrow_table(
            METRICS_1M, ("window_start", is_in, [moment]), columns=["points"]
        ).to_pylist() == [{"points": place + 1}]
    assert reader.read_arrow_table(METRICS_1M, columns=["points"], max_bytes=1_000).num_rows == len(TIMES)
    with pytest.raises(TooLargeError, match=METRICS_1M):
        reader.read_arrow_table(METRICS_1M, columns=["points"], max_bytes=39)


def test_of_sessions_that_are_named_both_readers_give_the_rows_and_weigh_no_others(
    spark: Any, settings: Settings
) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS])
    held = [(topic, f"s{n}", n) for topic in ("a", "b") for n in range(50)]
    names = ("topic", "session_id", "messages")
    content = pa.table([pa.array(column) for column in zip(*held, strict=True)], names)
    merge_rows(spark, lake, SESSIONS, content, Upsert(names[:2], names[2:]), Txn("m", 0))
    named = pa.table({"topic": ["a", "b", "b", "c"], "session_id": ["s3", "s3", "s3", "s3"]})
    for reader in (lake.reader(None), SparkReader(lake.storage, spark)):
        for at_most in (None, 500):
            found = reader.read_arrow_table(SESSIONS, columns=names, sessions=named, max_bytes=at_most)
            assert sorted(tuple(row.values()) for row in found.to_pylist()) == [("a", "s3", 3), ("b", "s3", 3)]
        with pytest.raises(TooLargeError, match=SESSIONS):
            reader.read_arrow_table(SESSIONS, columns=names, max_bytes=500)


@contextmanager
def letting_through(spark: Any, size: str) -> Iterator[None]:
    """Tasks' results up to a size; they are held against it as it is when the task is made."""
    java = spark.sparkContext._jsc.sc().conf()
    most = java.get("spark.driver.maxResultSize", "1g")
    java.set("spark.driver.maxResultSize", size)
    try:
        yield
    finally:
        java.set("spark.driver.maxResultSize", most)


def test_rows_that_are_few_and_too_wide_for_a_driver_are_reported_as_too_large(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS])
    names = ("topic", "session_id", "messages")
    content = pa.table([["a"] * 60, [f"{n}".zfill(10_000) for n in range(60)], list(range(60))], names)
    merge_rows(spark, lake, SESSIONS, content, Upsert(names[:2], names[2:]), Txn("m", 0))
    reader = SparkReader(lake.storage, spark)
    with letting_through(spark, "300k"), pytest.raises(TooLargeError, match=rf"{SESSIONS}: .*maxResultSize"):
        reader.read_arrow_table(SESSIONS, columns=names, max_bytes=1 << 20)
    assert reader.read_arrow_table(SESSIONS, columns=names, max_bytes=1 << 20).num_rows == len(content)


@pytest.mark.usefixtures("berlin")
def test_more_rows_than_a_driver_is_let_have_at_once_come_by_parts(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [LEDGER])
    entry = {"app_id": "app", "committed_at": TIMES[2], "offsets": [{"topic": "a", "first": 2**40, "messages": 3}]}
    for layer in ("bronze", "silver"):
        own = [entry | {"layer": layer, "batch_id": n, "source": "s" * 10_000} for n in range(30)]
        append_rows(
            spark, lake, LEDGER, pa.Table.from_pylist(own, lake.reader(spark).read_table_schema(LEDGER)), Txn(layer, 0)
        )
    reader = SparkReader(lake.storage, spark)

    def found(*columns: str) -> list[tuple[Any, ...]]:
        batches = list(reader.read_batches(LEDGER, ("batch_id", ge, 1), columns=columns))
        assert batches[0].schema == pa.schema([reader.read_table_schema(LEDGER).field(name) for name in columns])
        return sorted(((*row.values(),) for batch in batches for row in batch.to_pylist()), key=str)

    columns = ("layer", "batch_id", "committed_at", "offsets", "source")
    at_once = found(*columns)
    with letting_through(spark, "400k"):
        assert found(*columns) == at_once
    assert len(at_once) == 58


def test_spark_validates_the_checksums_that_stand_beside_commits_it_has_not_made(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, rewritten_rows=0)
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [METRICS_1M])

    def merged(number: int) -> None:
        merge_rows(spark, lake, METRICS_1M, rows([1, 2, number]).drop_columns([DELETE]), POINTS, Txn("app", number))

    def append_by_spark() -> None:
        lake.read(spark, METRICS_1M).limit(1).write.format("delta").mode("append").save(str(log.parent))

    log = find_table_folder(lake, METRICS_1M) / "_delta_log"
    with use_temporary_spark_conf(spark, {"spark.databricks.delta.incremental.commit.verify": "true"}):
        for number in range(2):
            merged(number)
        append_by_spark()
        merged(2)
        noted = max(log.glob("*.crc"))
        told = json.loads(noted.read_text())
        noted.write_text(json.dumps(told | {"numFiles": told["numFiles"] + 1}))
        with pytest.raises(Exception, match="Number of files"):
            append_by_spark()
