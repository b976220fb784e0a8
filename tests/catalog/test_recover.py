"""What is lost beside a catalog's tables is made good as beside a home's, under leases."""

from __future__ import annotations

import shutil
import threading
from operator import eq
from typing import Any

import pytest

from sessionlake.cli.options import RecoverableLayer
from sessionlake.delta.schemas.names import CHANGES, LEDGER, MESSAGES, ROWS
from sessionlake.errors import LakeError
from sessionlake.ledger.entries import RECOVERED
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.streaming.generations import CheckpointGenerations
from spark.test_losses import (
    FIRST,
    SECOND,
    recovered,
    test_of_a_table_that_was_made_again_versions_count_from_there,  # noqa: F401 - pytest runs what is imported again here
)
from spark.test_silver_law import Pipeline
from support.lakes import assert_silver_is_the_truth, rows_of


@pytest.mark.soak
def test_checkpoints_that_are_gone_are_begun_again(spark: Any, location: dict[str, Any]) -> None:
    run = Pipeline(spark, location)
    run.arrive(FIRST)
    run.stream()
    run.merge()
    shutil.rmtree(run.settings.checkpoint_path("silver"))
    assert "every row is equal to the former one" in recovered(run, RecoverableLayer.SILVER)
    run.arrive(SECOND)
    run.stream()
    run.merge()
    assert_silver_is_the_truth(spark, run.settings, [*FIRST, *SECOND], ledger=False)

    for messages in (len([*FIRST, *SECOND]), None):
        said = recovered(run, RecoverableLayer.BRONZE)
        assert ("were missing in" in said) == (messages is not None)
        [entry] = rows_of(spark, run.lake, LEDGER, ("layer", eq, "bronze"))
        assert (entry["source"], entry["messages"]) == (RECOVERED, len([*FIRST, *SECOND]))
        present = CheckpointGenerations(run.settings.checkpoint_path("bronze"), "bronze").current_generation
        assert present.app_id == entry["app_id"]
        assert present.first_batch > entry["batch_id"] + 1


@pytest.mark.soak
def test_a_table_that_restore_has_set_back_is_noticed_and_brought_forward(spark: Any, location: dict[str, Any]) -> None:
    run = Pipeline(spark, location)
    run.arrive(FIRST)
    run.stream()
    run.merge()
    for table, layer in ((MESSAGES, Layer.SILVER), (CHANGES, Layer.GOLD), (ROWS, Layer.SILVER)):
        newest = run.lake.last_commit(spark, table).version
        spark.sql(f"RESTORE TABLE {run.lake.to_sql_identifier(table)} TO VERSION AS OF 0").collect()
        with pytest.raises(LakeError, match=f"{table} has lost its latest changes: version {newest + 1} restored"):
            run_once(spark, run.settings, layer, threading.Event())
        if table != ROWS:
            spark.sql(f"RESTORE TABLE {run.lake.to_sql_identifier(table)} TO VERSION AS OF {newest}").collect()
    assert f"found: {ROWS} has lost its latest changes" in recovered(run, RecoverableLayer.SILVER)
    run.arrive(SECOND)
    run_once(spark, run.settings, Layer.SILVER, threading.Event())
    assert_silver_is_the_truth(spark, run.settings, [*FIRST, *SECOND], ledger=False)
