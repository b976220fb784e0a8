"""A job on workers that are processes of their own, killed while it runs, and brought into other shards."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from sessionlake.delta.schemas.names import GOLD, SILVER
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import Settings, load_settings
from sessionlake.settings.section import Integrity
from sessionlake.streaming.checkpoint import read_metadata_and_offset_of_planned_batch
from spark.test_resharding import arrive, assert_gold_is_exact
from support.cluster_worker import executors
from support.lakes import assert_silver_is_the_truth
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut

BATCHES = 6
STARTS = 6


def configured(file: Path, shards: int) -> Settings:
    rules = [
        {"pattern": rf"capture\.{integrity}", "integrity": str(integrity), "on_violation": "record", "lateness": "2 s"}
        for integrity in Integrity
    ]
    content = {
        "home": str(file.parent / "home"),
        "capture": {"columns": COLUMNS, "max_message_bytes": MAX_BYTES, "by_topic": rules, "gap_timeout": "5 s"},
        "silver": {"shards": shards, "max_files_per_trigger": 1},
        "gold": {"shards": shards, "averages": [{"name": "by_topic", "keys": ["topic", "metric"], "points": 3}]},
    }
    file.write_text(yaml.safe_dump(content))
    return load_settings(file)


def run_on_cluster(file: Path, rnd: random.Random) -> int:
    """Runs a job to its end, as a platform does: started again if it fails. Returns how many workers were killed."""
    killed = 0
    for _ in range(STARTS):
        command = [sys.executable, "-m", "support.cluster_worker", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            for _batch in job.stdout:
                time.sleep(rnd.uniform(0, 1))  # into the middle of the next one
                with suppress(psutil.NoSuchProcess, IndexError):
                    rnd.choice(executors(job.pid)).kill()
                    killed += 1
        if job.returncode == 0:
            return killed
    raise AssertionError(f"the job failed {STARTS} times")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_job_whose_workers_are_killed_leaves_the_truth_with_a_state_store_for_each_shard(
    spark: Any, tmp_path: Path
) -> None:
    rnd, file = random.Random(3), tmp_path / "sessionlake.yml"
    cuts = [list(cut(rnd, StreamMaker(rnd, LIGHT, [f"capture.{i}"]).make(120), BATCHES)) for i in Integrity]
    parts = [[message for part in parts for message in part] for parts in zip(*cuts, strict=True)]
    for shards, mine in ((5, parts[: BATCHES // 2]), (3, parts[BATCHES // 2 :])):
        settings = configured(file, shards)
        arrive(spark, settings, *mine)
        assert run_on_cluster(file, rnd) >= len(mine) - 1
        for layer in (SILVER, GOLD):
            metadata, _ = read_metadata_and_offset_of_planned_batch(settings.checkpoint_path(layer), 0)
            assert metadata["conf"]["spark.sql.shuffle.partitions"] == str(shards)
            stores = [store.name for store in (Path(settings.checkpoint_path(layer)) / "state" / "0").iterdir()]
            assert {*map(str, range(shards))} <= {*stores}
            assert not {str(shards)} & {*stores}
    assert_silver_is_the_truth(spark, settings, [message for part in parts for message in part])
    found = verify_silver_tables(spark, settings)
    assert (found.is_exact, found.states is not None and found.states.skipped) == (True, None)
    assert_gold_is_exact(spark, settings)
