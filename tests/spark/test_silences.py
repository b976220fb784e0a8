"""Silences that silver has yet to read: a replay leaves them out, and sessions are not rebuilt one by one before."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sessionlake.bronze.silences import SilenceWriter
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.errors import IntegrityViolationError, LakeError
from sessionlake.ledger.progress import read_last_merged_batch_number
from sessionlake.ledger.silences import read_silences
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.operations.rebuild.preflight import require_silver_read_all_bronze
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.protocol.silence import Silence
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, write_bronze

TOPIC, START, HOUR = "capture.a", 1_700_000_000_000, 3_600_000
SILENT = Silence(TOPIC, 0, 1, START + HOUR + 5, HOUR + 5)
"""Behind the messages that there are of partition 0."""


def said(partition: int, offset: int, session: str, seq: int) -> KafkaMessage:
    value = {"type": "update" if seq else "snapshot", "seq": seq, "ts": START, "rows": [{"id": "r", "price": 1.5}]}
    return KafkaMessage(TOPIC, partition, offset, START, session.encode(), json.dumps(value).encode())


class Begun:
    """A silver that has read the first messages of two partitions."""

    def __init__(self, spark: Any, location: dict[str, Any]) -> None:
        self.spark = spark
        self.settings = Settings(
            **location, capture=CaptureSettings(columns={"price": "double"}), silver=SilverSettings(shards=2)
        )
        self.lake = Lake(self.settings)
        self.lake.create_or_update_tables(spark, [MESSAGES])
        self.facts = [said(0, 0, "one", 0), said(0, 1, "two", 0), said(1, 0, "other", 0)]
        write_bronze(spark, self.lake, self.facts)
        self.run()

    def run(self) -> None:
        job.start(self.spark, self.settings, once=True).wait()

    @property
    def version(self) -> int:
        return self.lake.last_commit(self.spark, MESSAGES).version


@pytest.fixture
def begun(spark: Any, location: dict[str, Any]) -> Begun:
    return Begun(spark, location)


@pytest.mark.soak
def test_a_silence_in_a_batch_that_was_not_committed_is_left_out_of_a_replay(begun: Begun) -> None:
    write_bronze(begun.spark, begun.lake, [SILENT])
    write_bronze(begun.spark, begun.lake, [said(1, 1, "other", 2)])
    with pytest.raises(IntegrityViolationError, match=r"gap: session 'other'"):
        begun.run()
    found = verify_silver_tables(begun.spark, begun.settings)
    assert found.is_exact, (found.first_difference, found.states)


@pytest.mark.soak
def test_silver_is_not_level_with_bronze_before_it_has_read_its_silences(begun: Begun) -> None:
    before = begun.version
    write_bronze(begun.spark, begun.lake, [SILENT])
    with pytest.raises(
        LakeError, match=r"has not read exactly the messages of .* Run `sessionlake run silver --once` first"
    ):
        rebuild_silver_tables(begun.spark, begun.settings, selection=SessionSelection(TOPIC, ("one",)), compares=False)
    require_silver_read_all_bronze(begun.spark, begun.lake, before)
    begun.run()
    begun.lake.open_delta_table(begun.spark, MESSAGES).optimize().executeCompaction()
    require_silver_read_all_bronze(begun.spark, begun.lake, begun.version)  # which the stream has nothing to read of


def test_silences_are_written_down_though_the_clock_is_set_back(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    book: Any = SimpleNamespace(list_bronze_end_offsets=lambda: {(TOPIC, 0): 2, (TOPIC, 1): 1})
    told = [(SILENT, 2), (Silence(TOPIC, 1, 0, START + HOUR, HOUR), 1)]
    for number, silence in enumerate(told):  # each by a process of its own
        monkeypatch.setattr("time.time_ns", lambda back=number: (START - back * HOUR) * 1_000_000)
        SilenceWriter(begun.spark, begun.lake, begun.settings, book).write_silences([silence])
    assert {*read_silences(begun.lake.reader(begun.spark))} == {silence for silence, _ in told}


def test_what_silver_has_committed_before_a_violation_is_merged_and_the_violation_reported(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bronze(begun.spark, begun.lake, [said(1, 1, "other", 2)])
    whole = TableMerger.merge_all_pending_batches
    for merge, merged in ((lambda _: 1 / 0, -1), (whole, 0)):
        monkeypatch.setattr(TableMerger, "merge_all_pending_batches", merge)
        with pytest.raises(IntegrityViolationError, match=r"gap: session 'other'"):
            run_once(begun.spark, begun.settings, Layer.SILVER, threading.Event())
        assert read_last_merged_batch_number(begun.lake.reader(begun.spark)) == merged


@pytest.mark.soak
def test_a_rebuild_has_taken_in_a_silence_that_the_stream_has_never_read(begun: Begun) -> None:
    write_bronze(begun.spark, begun.lake, [SILENT])
    rebuild_silver_tables(begun.spark, begun.settings)
    assert_silver_is_the_truth(begun.spark, begun.settings, [*begun.facts, SILENT], ledger=False)
    found = verify_silver_tables(begun.spark, begun.settings)
    assert found.is_exact, (found.first_difference, found.states)
