"""A writer gets the version and the number of rows of its own commit without a Spark job after the commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.txn import Txn
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import convert_to_spark_frame


@pytest.fixture
def lake(spark: Any, location: dict[str, Any]) -> Lake:
    made = Lake(Settings(**location))
    made.create_or_update_tables(spark, [DECISIONS])
    return made


def _create_rows(count: int) -> pa.Table:
    row = {"topic": "t", "session_id": "s", "offset": 1, "decision": "isolate", "decided_at": datetime.now(UTC)}
    return pa.Table.from_pylist([row] * count, arrow_schema(DECISIONS))


def _count_jobs(spark: Any, action: Callable[[], TableCommit | None]) -> tuple[int, TableCommit | None]:
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.nextJobId()
    result = action()
    return scheduler.nextJobId() - before, result


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_an_append_returns_its_commit_and_runs_no_other_jobs_than_spark_s_writer(
    spark: Any, lake: Lake, *, is_in_memory: bool
) -> None:
    append_rows(spark, lake, DECISIONS, _create_rows(2), Txn("stream", 0))
    rows = _create_rows(2) if is_in_memory else lake.read(spark, DECISIONS).limit(1)
    frame = convert_to_spark_frame(spark, rows)
    options = Txn("stream", 1).build_writer_options(DECISIONS)
    plain, _ = _count_jobs(spark, lambda: lake.storage.append_rows_with_spark(frame, DECISIONS, options))
    jobs, commit = _count_jobs(spark, lambda: append_rows(spark, lake, DECISIONS, rows, Txn("stream", 2)))
    assert commit == TableCommit(3, 2 if is_in_memory else 1)
    assert jobs == plain


def test_a_commit_of_staged_rows_needs_no_job_after_it(spark: Any, lake: Lake) -> None:
    append_rows(spark, lake, DECISIONS, _create_rows(3), Txn("stream", 0))
    with lake.storage.stage_rows(spark, DECISIONS, lake.read(spark, DECISIONS).limit(2)) as staged:
        assert staged.count_rows() == 2

        def append_version(version: int) -> None:
            options = Txn("stream", version).build_writer_options(DECISIONS)
            lake.storage.append_rows_with_spark(staged._rows, DECISIONS, options)

        append_version(1)
        plain, _ = _count_jobs(spark, lambda: append_version(2))  # now Delta also reads transactions
        jobs, commit = _count_jobs(spark, lambda: staged.commit_rows(Txn("stream", 3)))
    assert commit == TableCommit(4, 2)
    assert jobs == plain


def test_a_replay_appends_nothing_and_returns_the_table_s_latest_commit(spark: Any, lake: Lake) -> None:
    append_rows(spark, lake, DECISIONS, _create_rows(3), Txn("stream", 0))
    assert append_rows(spark, lake, DECISIONS, _create_rows(2), Txn("stream", 0)) == TableCommit(1, 3)
    assert lake.read(spark, DECISIONS).count() == 3
