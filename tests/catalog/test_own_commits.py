"""After its own commit, a writer knows the version and the number of rows without reading the table's history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sessionlake.delta.commit import append_and_read_commit, append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.txn import Txn
from sessionlake.settings.model import Settings


def test_the_commit_of_rows_in_memory_is_known_without_a_job_after_it(spark: Any, location: dict[str, Any]) -> None:
    lake, scheduler = Lake(Settings(**location)), spark.sparkContext._jsc.sc().dagScheduler()
    lake.create_or_update_tables(spark, [DECISIONS])
    row = {"topic": "t", "session_id": "s", "offset": 1, "decision": "isolate", "decided_at": datetime.now(UTC)}
    rows = pa.Table.from_pylist([row, row], arrow_schema(DECISIONS))
    append_rows(spark, lake, DECISIONS, rows, Txn("stream", 0))
    jobs = [scheduler.nextJobId()]
    append_rows(spark, lake, DECISIONS, rows, Txn("stream", 1))
    jobs.append(scheduler.nextJobId())
    commit = append_and_read_commit(spark, lake, DECISIONS, rows, Txn("stream", 2))
    jobs.append(scheduler.nextJobId())
    assert commit == TableCommit(3, 2)
    assert jobs[2] - jobs[1] == jobs[1] - jobs[0]


def test_after_a_replay_or_for_rows_that_spark_computes_the_commit_is_the_table_s_last(
    spark: Any, location: dict[str, Any]
) -> None:
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [DECISIONS])
    rows = pa.Table.from_pylist([{"topic": "t"}] * 3, arrow_schema(DECISIONS))
    append_rows(spark, lake, DECISIONS, rows, Txn("stream", 0))
    assert append_and_read_commit(spark, lake, DECISIONS, rows.slice(1), Txn("stream", 0)) == TableCommit(1, 3)
    computed = lake.read(spark, DECISIONS).limit(1)
    assert append_and_read_commit(spark, lake, DECISIONS, computed, Txn("stream", 1)) == TableCommit(2, 1)
