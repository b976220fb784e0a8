"""What a start asks of a catalog's tables is asked once, and is what they have."""

from __future__ import annotations

import operator
import threading
from typing import Any

import pytest

from sessionlake.delta.catalog import memory
from sessionlake.delta.catalog.snapshots import has_no_files_by_checksum
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, DECISIONS
from sessionlake.delta.storage.reading import TableReader, is_in
from sessionlake.settings.model import Settings
from support.lakes import write_rows

# Properties that SQL shows beside those that were set.
OF_PROTOCOL = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion", "clusteringColumns")


def decided(*offsets: int) -> list[dict[str, Any]]:
    return [{"topic": "t", "session_id": "s", "offset": offset, "decision": "isolate"} for offset in offsets]


def test_properties_are_remembered_until_the_block_is_left(spark: Any, location: dict[str, Any]) -> None:
    lake = Lake(Settings(**location))
    with lake.storage.cache_repeated_reads():
        lake.create_or_update_tables(spark, [DECISIONS])
        lake.set_property(spark, DECISIONS, "sessionlake.one", "1")
        with Lake(lake.settings).storage.cache_repeated_reads():
            remembered = lake.storage.read_properties(spark, DECISIONS)
        assert remembered["sessionlake.one"] == "1"
        by_another_process(spark, lake, "SET TBLPROPERTIES (sessionlake.two = 2)")
        assert lake.storage.read_properties(spark, DECISIONS) == remembered
    assert lake.storage.read_properties(spark, DECISIONS)["sessionlake.two"] == "2"
    with lake.storage.cache_repeated_reads():
        assert lake.exists(spark, DECISIONS)
        lake.drop_table(spark, DECISIONS)
        assert not lake.exists(spark, DECISIONS)


def test_properties_and_emptiness_need_no_spark_job(spark: Any, location: dict[str, Any]) -> None:
    lake, scheduler = Lake(Settings(**location)), spark.sparkContext._jsc.sc().dagScheduler()
    lake.create_or_update_tables(spark, [CHANGES, DECISIONS])
    write_rows(spark, lake, DECISIONS, decided(1))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    before = scheduler.nextJobId()
    properties = lake.storage.read_properties(spark, CHANGES)  # of a clustered table
    empty = [has_no_files_by_checksum(lake.storage, spark, table) for table in (CHANGES, DECISIONS)]
    assert scheduler.nextJobId() == before
    assert empty == [True, False]
    shown = {
        row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {lake.to_sql_identifier(CHANGES)}").collect()
    }
    assert properties == {key: value for key, value in shown.items() if not key.startswith(OF_PROTOCOL)}


@pytest.mark.parametrize(
    "at_most", [pytest.param(None, id="small"), pytest.param(0, id="large", marks=pytest.mark.soak)]
)
def test_rows_are_those_of_the_table_and_read_once(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch, at_most: int | None
) -> None:
    if at_most is not None:
        monkeypatch.setattr(memory, "_SMALL_BYTES", at_most)
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [DECISIONS])
    with lake.storage.cache_repeated_reads():
        assert lake.reader(spark).count_rows(DECISIONS) == 0
        write_rows(spark, lake, DECISIONS, decided(1, 2))
        assert lake.reader(spark).count_rows(DECISIONS) == 2
        in_another_thread(lambda: write_rows(spark, lake, DECISIONS, decided(3, 40)))
        found = answers(lake.reader(spark))
        assert found == answers_in_another_thread(spark, lake)
        spark.sql(
            f"INSERT INTO {lake.to_sql_identifier(DECISIONS)} SELECT * FROM {lake.to_sql_identifier(DECISIONS)}"  # noqa: S608  (the name is the lake's own)
        )
        assert (answers(lake.reader(spark)) == found) is (at_most is None)
    assert lake.reader(spark).count_rows(DECISIONS) == 8


def answers(reader: TableReader) -> list[Any]:
    """What a reader says of a table in each of its ways, with and without conditions."""
    found: list[Any] = [reader.count_rows(DECISIONS), reader.sample_rows(DECISIONS, 99, ["topic", "offset"])]
    for conditions in ((), [("offset", is_in, [1, 3]), ("topic", operator.eq, "t")]):
        rows, count = reader.read_rows_and_total_count(DECISIONS, *conditions, columns=["offset"])
        found += [
            sorted(row["offset"] for row in reader.read_rows(DECISIONS, *conditions)),
            sorted(rows["offset"].to_pylist()),
            count,
            reader.has_rows(DECISIONS, *conditions),
            reader.count_rows_by(DECISIONS, ["topic", "offset"], *conditions),
            reader.find_highest_values(DECISIONS, "offset", ["topic"], *conditions),
            reader.read_arrow_table(DECISIONS, *conditions, columns=["decision"]).schema,
        ]
    return found


def answers_in_another_thread(spark: Any, lake: Lake) -> list[Any]:
    """Where nothing is remembered."""
    found: list[Any] = []
    in_another_thread(lambda: found.extend(answers(lake.reader(spark))))
    return found


def in_another_thread(call: Any) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def by_another_process(spark: Any, lake: Lake, change: str) -> None:
    """Changes the table behind the lake's back."""
    spark.sql(f"ALTER TABLE {lake.to_sql_identifier(DECISIONS)} {change}")
