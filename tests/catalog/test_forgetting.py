"""A session leaves a catalog's tables, and silver goes on."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.config import CaptureSettings, Settings, SilverSettings
from sessionlake.forgetting.forget import Forgetting
from sessionlake.lake.names import MESSAGES, SESSIONS
from sessionlake.lake.tables import Lake
from sessionlake.protocol.erased import KEY
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.rebuild.verify import verify
from spark.test_forgetting import (
    GONE,
    OTHERS,
    SILVER,
    of_others,
    stream,
    test_messages_are_in_no_file_though_the_platform_marks_what_changes,  # noqa: F401
    test_rows_that_are_only_marked_as_gone_leave_their_files_though_the_session_has_no_others,  # noqa: F401
    test_the_books_lose_the_session_s_decisions_and_nothing_else,  # noqa: F401
)
from support.lakes import rows_of, write_bronze


@pytest.fixture
def settings(location: dict[str, Any]) -> Settings:
    capture = CaptureSettings(columns={"price": "double"}, integrity="strict", on_violation="record")
    return Settings(**location, capture=capture, silver=SilverSettings(shards=2))


@pytest.mark.soak
def test_the_session_is_in_no_table_and_silver_is_what_bronze_makes_of_it(spark: Any, settings: Settings) -> None:
    lake, (first, second) = Lake(settings), stream(2)
    lake.ensure(spark, [MESSAGES])
    write_bronze(spark, lake, first)
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).catch_up()
    before = of_others(spark, lake)

    found = Forgetting(spark, settings).run(GONE)

    assert (found.messages, found.report["search"]["found"]) == (10, [])
    assert of_others(spark, lake) == before
    assert not [row for table in SILVER for row in rows_of(spark, lake, table) if row["session_id"] == GONE]
    write_bronze(spark, lake, [m._replace(key=KEY, value=None) if m.key == GONE.encode() else m for m in second])
    job.start(spark, settings, once=True).wait()
    assert verify(spark, settings).exact
    assert {row["session_id"] for row in rows_of(spark, lake, SESSIONS)} == set(OTHERS)
