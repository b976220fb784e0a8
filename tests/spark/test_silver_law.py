"""The law through real Spark and Delta: micro-batches, replays and merges leave what the truth says."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from sessionlake.config import CaptureSettings, Integrity, OnViolation, Settings, SilverSettings, TopicRule
from sessionlake.errors import IntegrityViolationError, OffsetHoleError
from sessionlake.lake.tables import Lake
from sessionlake.local.truth import KafkaMessage
from sessionlake.silver import job
from sessionlake.silver.tables import TableMerger
from support.lakes import assert_silver_is_the_truth, comparable, write_bronze
from support.streams import COLUMNS, LIGHT, MAX_BYTES, WILD, StreamMaker, cut

TABLES = ("session_changes", "session_progress", "quarantine", "integrity_events", "sessions", "session_rows")
MIXED = (TopicRule(pattern=r"capture\.b", integrity=Integrity.ORDER, on_violation=OnViolation.RECORD),)


class Pipeline:
    """Silver over a bronze table that the test writes itself."""

    def __init__(self, spark: Any, home: Path, policy: OnViolation = OnViolation.ISOLATE) -> None:
        capture = CaptureSettings(columns=COLUMNS, on_violation=policy, max_message_bytes=MAX_BYTES, by_topic=MIXED)
        silver = SilverSettings(shards=3, max_files_per_trigger=1)
        self.spark, self.settings = spark, Settings(home=home, capture=capture, silver=silver)
        self.lake = Lake(self.settings)
        self.lake.ensure(spark, ["bronze.messages"])

    def arrive(self, messages: list[KafkaMessage]) -> None:
        write_bronze(self.spark, self.lake, messages)

    def stream(self) -> None:
        job.start(self.spark, self.settings, once=True).wait()

    def merge(self) -> int:
        return TableMerger(self.spark, self.settings).catch_up()

    def content(self) -> dict[str, list[str]]:
        tables = {name: comparable(self.lake.read(self.spark, f"silver.{name}")).toArrow() for name in TABLES}
        return {name: sorted(map(repr, table.to_pylist())) for name, table in tables.items()}

    def batches(self) -> list[int]:
        commits = Path(self.settings.checkpoint(job.LAYER)) / "commits"
        return sorted(int(file.name) for file in commits.iterdir() if file.name.isdigit())

    def forget(self, batch: int) -> None:
        """Takes the checkpoint back to a batch that committed its tables and then died."""
        commits = Path(self.settings.checkpoint(job.LAYER)) / "commits"
        (commits / str(batch)).unlink()
        (commits / f".{batch}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(("seed", "noise"), [(1, WILD), (2, LIGHT)])
def test_micro_batches_merged_in_between_equal_the_truth_and_a_replay_changes_nothing(
    spark: Any, tmp_path: Path, seed: int, noise: Any
) -> None:
    rnd = random.Random(seed)
    messages = StreamMaker(rnd, noise).make(400)
    pipeline = Pipeline(spark, tmp_path / "home")
    first, second, *rest = cut(rnd, messages, 4)
    for batch in (first, second):
        pipeline.arrive(batch)
    pipeline.stream()
    assert pipeline.batches() == [0, 1]
    assert pipeline.merge() == 1
    for batch in rest:
        pipeline.arrive(batch)
    pipeline.stream()
    assert pipeline.merge() == 1
    assert_silver_is_the_truth(spark, pipeline.settings, messages)

    before = pipeline.content()
    pipeline.forget(pipeline.batches()[-1])
    pipeline.stream()
    assert pipeline.merge() == 0
    assert pipeline.content() == before


def test_a_violation_under_fail_commits_nothing_and_stops_again_at_the_same_place(spark: Any, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path / "home", OnViolation.FAIL)
    now = 1_700_000_000_000
    texts = [b'{"type":"snapshot","seq":0,"ts":0,"rows":[{"id":"a"}]}', b'{"type":"heartbeat","seq":2,"ts":0}']
    messages = [KafkaMessage("capture.a", 0, offset, now, b"s", text) for offset, text in enumerate(texts)]
    pipeline.arrive(messages)
    for _ in range(2):
        with pytest.raises(IntegrityViolationError, match=r"gap: session 's'.*offset 1: expected seq 1, found seq 2"):
            pipeline.stream()
        assert not any(pipeline.lake.read(spark, f"silver.{table}").count() for table in TABLES[:4])
        assert pipeline.lake.read(spark, "ops.ledger").count() == 0


def test_a_hole_in_bronze_stops_silver_before_it_commits_anything(spark: Any, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path / "home")
    good = b'{"type":"heartbeat","seq":0,"ts":0}'
    pipeline.arrive([KafkaMessage("capture.a", 0, offset, 0, b"s", good) for offset in (0, 1, 3)])
    with pytest.raises(OffsetHoleError, match="1 of the offsets 0 to 3 are missing"):
        pipeline.stream()
    assert not any(pipeline.lake.read(spark, f"silver.{table}").count() for table in TABLES[:4])
