"""What a page tells is the same whether delta-rs or Spark reads the tables."""

from __future__ import annotations

from dataclasses import replace
from operator import eq

import pyarrow as pa
import pytest

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SESSIONS
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.reading import TableSize
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.history.report.contents import read_report_contents
from sessionlake.history.report.page import render_page
from sessionlake.spark.frames import convert_to_spark_frame
from support.lakes import find_table_folder
from support.ledgers import NOON
from support.reports import fill


@pytest.mark.soak
def test_the_page_of_a_lake_that_spark_reads_is_that_of_one_that_delta_rs_reads(spark, settings):
    lake = Lake(settings)
    fill(lake, ["capture.a", "capture.b"])
    pages = [
        render_page(replace(read_report_contents(reader, settings), made_at=NOON))
        for reader in (lake.reader(), SparkReader(lake.storage, spark))
    ]
    assert pages[0] == pages[1]


def test_rows_that_deletion_vectors_take_out_are_not_counted(spark, settings):
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS])
    sessions = [{"topic": "a", "session_id": f"s{n}", "status": "ended" if n % 3 else "open"} for n in range(100)]
    rows = convert_to_spark_frame(spark, pa.Table.from_pylist(sessions, lake.reader(spark).read_table_schema(SESSIONS)))
    lake.storage.append_rows_with_spark(rows.coalesce(1), SESSIONS, {})
    lake.set_property(spark, SESSIONS, DELETION_VECTORS, "true")
    lake.open_delta_table(spark, SESSIONS).delete("session_id < 's5'")
    log = find_table_folder(lake, SESSIONS) / "_delta_log"
    assert any("deletionVector" in file.read_text() for file in log.glob("*3.json"))
    left = [row for row in sessions if row["session_id"] >= "s5"]
    for reader in (lake.reader(), SparkReader(lake.storage, spark)):
        size = reader.read_size(SESSIONS)
        assert size == TableSize(version=3, rows=len(left), files=1, bytes=size.bytes)
        assert size.bytes > 0
        assert reader.count_rows_by(SESSIONS, ("topic", "status")) == {
            ("a", status): sum(row["status"] == status for row in left) for status in ("open", "ended")
        }
        assert reader.count_rows_by(SESSIONS, ("status",), ("session_id", eq, "s50")) == {("ended",): 1}
        assert reader.count_rows_by("silver.quarantine", ("topic",)) == {}
