"""Chains of a feed in a lake: judged as a plain program does, also after a new number of shards and a rebuild."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sessionlake.cli.show import OutputFormat
from sessionlake.cli.state import show_session_state
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.operations.resharding.reshard import reshard_layers
from sessionlake.settings.model import Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.lakes import rows_of, write_bronze
from unit.test_chains import PlainSession, random_messages, read_plainly, settings

TOPIC = "books"


def run_silver(spark: Any, lake: Settings, messages: list[KafkaMessage]) -> None:
    write_bronze(spark, Lake(lake), messages)
    job.start(spark, lake, once=True).wait()
    TableMerger(spark, lake).merge_all_pending_batches()


def require_plain(spark: Any, lake: Settings, expected: dict[str, PlainSession]) -> None:
    found = {
        row["session_id"]: (row["status"], row["gaps"], row["duplicates"])
        for row in rows_of(spark, Lake(lake), "silver.sessions")
    }
    assert found == {
        name: (one.status.replace("new", "open"), one.gaps, one.duplicates) for name, one in expected.items()
    }
    rows: dict[str, dict[int, int]] = {}
    for row in rows_of(spark, Lake(lake), "silver.session_rows"):
        rows.setdefault(row["session_id"], {})[row["price"]] = row["qty"]
    assert rows == {name: one.rows for name, one in expected.items() if one.rows}


def test_chains_in_a_lake_are_judged_as_a_plain_program_does(
    spark: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = random_messages(random.Random(5), 60)
    lake = Settings(home=tmp_path / "home", capture=settings("isolate"), silver=SilverSettings(shards=3))
    Lake(lake).create_or_update_tables(spark, [MESSAGES])
    run_silver(spark, lake, messages[:20])
    run_silver(spark, lake, messages[20:40])
    require_plain(spark, lake, read_plainly(messages[:40], "isolate"))
    show_session_state(spark, lake, "a", TOPIC, OutputFormat.JSON)
    assert '"session_id": "a"' in capsys.readouterr().out
    other = lake.model_copy(update={"silver": SilverSettings(shards=5)})
    reshard_layers(spark, other, 5)
    run_silver(spark, other, messages[40:])
    expected = read_plainly(messages, "isolate")
    require_plain(spark, other, expected)
    rebuild_silver_tables(spark, other, selection=SessionSelection(TOPIC, ("b",)))
    require_plain(spark, other, expected)
    found = verify_silver_tables(spark, other)
    assert found.is_exact, (found.first_difference, found.states)
