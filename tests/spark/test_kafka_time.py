"""Kafka timestamps that say no time, or one in the future, in bronze's table: silver is what it is without Spark."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.history.asof import session_as_of
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings, TopicOverrideSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.stream_times import open_stored_stream_times
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, rows_of, write_bronze
from support.streams import (
    COLUMNS,
    LIGHT,
    MAX_BYTES,
    NO_TIME,
    SKEW,
    START,
    YEAR_10000,
    Fact,
    StreamMaker,
    Times,
    cut,
    with_silences,
    with_times,
)

KINDS = [kind for kind in Times if kind is not Times.USUAL]
RULES = tuple(
    TopicOverrideSettings(pattern=rf"capture\.{i}-.+", integrity=i, on_violation=OnViolation.RECORD, lateness="2 s")
    for i in Integrity
)


def streams() -> list[list[Fact]]:
    """Of each class and kind of timestamps a stream, in three batches."""
    rnd, cuts = random.Random(11), []
    for number, (integrity, kind) in enumerate((i, k) for i in Integrity for k in KINDS):
        made = StreamMaker(rnd, LIGHT, [f"capture.{integrity}-{kind.name.lower()}"]).make(24)
        messages = with_times(rnd, made, kind)
        cuts.append(list(cut(rnd, with_silences(rnd, messages) if number % 2 else [*messages], 3)))
    return [[fact for part in parts for fact in part] for parts in zip(*cuts, strict=True)]


def settings_in(folder: Path) -> Settings:
    capture = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES, by_topic=RULES, gap_timeout="5 s")
    silver = SilverSettings(shards=3, max_files_per_trigger=1, snapshot_interval="7 s")
    return Settings(home=folder / "home", capture=capture, silver=silver)


@pytest.mark.soak
def test_every_kind_of_timestamp_in_streamed_batches_and_in_a_rebuild(spark: Any, tmp_path: Path) -> None:
    settings, batches = settings_in(tmp_path), streams()
    lake = Lake(settings)
    lake.create_or_update_tables(spark, ["bronze.messages"])
    for part in (batches[:2], batches[2:]):
        for batch in part:
            write_bronze(spark, lake, batch)
        job.start(spark, settings, once=True).wait()
        TableMerger(spark, settings).merge_all_pending_batches()
        shutil.rmtree(
            open_stored_stream_times(settings, job.LAYER).folder
        )  # what was noted there is looked up in bronze
    facts = [fact for batch in batches for fact in batch]
    assert_silver_is_the_truth(spark, settings, facts)
    assert "future_kafka_ts" in {row["reason"] for row in rows_of(spark, lake, "silver.quarantine")}
    assert verify_silver_tables(spark, settings).is_exact


def test_as_of_a_time_goes_by_the_times_that_count(spark: Any, tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    stamps = [(NO_TIME, START), (START, START), (YEAR_10000, START), (NO_TIME, START), (START + 9_000, START + 9_000)]
    kinds = ["snapshot", *["update"] * 4]
    texts = [
        json.dumps({"type": kind, "seq": n, "ts": 0, "rows": [{"id": "r", "qty": n}]}) for n, kind in enumerate(kinds)
    ]
    messages = [
        KafkaMessage("capture.order-a", 0, n, stamp, b"s", text.encode(), read)
        for n, ((stamp, read), text) in enumerate(zip(stamps, texts, strict=True))
    ]
    lake = Lake(settings)
    lake.create_or_update_tables(spark, ["bronze.messages"])
    write_bronze(spark, lake, messages)
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()
    assert_silver_is_the_truth(spark, settings, messages)

    def qty(ts: int) -> list[int]:
        return session_as_of(settings, "s", ts=ts)["qty"].to_pylist()

    moments = [NO_TIME, START - 1, START, START + 8_999, START + 9_000]
    assert list(map(qty, moments)) == [[0], [0], [3], [3], [4]]
    with pytest.raises(LakeError, match="stream time has not reached"):
        qty(START + SKEW)  # only the message from the future says that
