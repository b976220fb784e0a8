"""The law through real Spark and Delta: micro-batches, replays and merges leave what the truth says."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import EVENTS, LEDGER, SILVER
from sessionlake.errors import IntegrityViolationError, OffsetHoleError, UsageError
from sessionlake.history.state import compute_shard_state_stats, find_session_state
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings, TopicOverrideSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver import job
from sessionlake.silver.decisions import read_message_that_stopped_layer, record_decision, withdraw_decision
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.states import compute_shard_of_session, read_shard_states
from sessionlake.silver.stream_times import open_stored_stream_times
from sessionlake_lab.truth import KafkaMessage
from support.checkpoints import lose_last_commit
from support.lakes import assert_silver_is_the_truth, comparable, in_order, limit, rows_of, write_bronze
from support.streams import COLUMNS, LIGHT, MAX_BYTES, WILD, Fact, StreamMaker, cut, with_silences
from support.views import assert_views_are_the_truth

APPENDED = ("session_changes", "session_progress", "session_cuts", "quarantine", "integrity_events")
TABLES = (*APPENDED, "sessions", "session_rows", "session_snapshots", "session_snapshot_index")
SEEDS = 3
CASES = [(integrity, policy) for integrity in Integrity for policy in (OnViolation.ISOLATE, OnViolation.RECORD)]


def topic_of(integrity: Integrity, policy: OnViolation, seed: int) -> str:
    return f"capture.{integrity}-{policy}-{seed}"


EVERY = tuple(
    TopicOverrideSettings(
        pattern=rf"capture\.{integrity}-{policy}-.", integrity=integrity, on_violation=policy, lateness="2 s"
    )
    for integrity, policy in CASES
)


class Pipeline:
    """Silver over a bronze table that the test writes itself."""

    def __init__(self, spark: Any, location: dict[str, Any], policy: OnViolation = OnViolation.ISOLATE) -> None:
        capture = CaptureSettings(
            columns=COLUMNS, on_violation=policy, max_message_bytes=MAX_BYTES, by_topic=EVERY, gap_timeout="5 s"
        )
        silver = SilverSettings(shards=3, max_files_per_trigger=1, snapshot_interval="7 s")
        self.spark, self.settings = spark, Settings(**location, capture=capture, silver=silver)
        self.lake = Lake(self.settings)
        self.lake.create_or_update_tables(spark, ["bronze.messages"])

    def arrive(self, messages: Sequence[Fact]) -> None:
        write_bronze(self.spark, self.lake, messages)

    def stream(self) -> None:
        job.start(self.spark, self.settings, once=True).wait()

    def merge(self) -> int:
        return TableMerger(self.spark, self.settings).merge_all_pending_batches()

    def content(self) -> dict[str, list[str]]:
        return {name: in_order(comparable(self.spark, self.lake, f"silver.{name}")) for name in TABLES}

    def batches(self) -> list[int]:
        commits = Path(self.settings.checkpoint_path(job.LAYER)) / "commits"
        return sorted(int(file.name) for file in commits.iterdir() if file.name.isdigit())

    def lose_last_commit(self) -> None:
        """Takes the checkpoint back to a batch that committed its tables and then died."""
        lose_last_commit(self.settings.checkpoint_path(job.LAYER))


def streams(seeds: int = SEEDS, batches: int = 5) -> Iterator[list[Fact]]:
    """Thirty streams or less, each to a topic of its own, interleaved and cut into micro-batches; some fall silent."""
    rnd = random.Random(5)
    cuts = []
    for seed in range(seeds):
        for integrity, policy in CASES:
            maker = StreamMaker(rnd, rnd.choice([LIGHT, WILD]), [topic_of(integrity, policy, seed)])
            messages = maker.make(rnd.choice([40, 80, 120]))
            cuts.append(list(cut(rnd, with_silences(rnd, messages) if seed % 2 else [*messages], batches)))
    for parts in zip(*cuts, strict=True):
        yield [message for messages in parts for message in messages]


def by_spark_alone(patch: pytest.MonkeyPatch) -> None:
    """As if every batch were large: on the cluster."""
    limit(patch, **dict.fromkeys(vars(FolderStorage.limits), 0))
    patch.setattr("sessionlake.delta.storage.spark_writes._MAX_NAMED_VALUES", 2)


# Large: in between as if a batch were, which the catalog's streams show each time.
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_thirty_streams_of_every_class_equal_the_truth_merged_in_between_and_a_replay_changes_nothing(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    pipeline = Pipeline(spark, location)
    batches = list(streams(batches=4))
    for batch in batches[:2]:
        pipeline.arrive(batch)
    pipeline.stream()
    assert pipeline.batches() == [0, 1]
    assert pipeline.merge() == 1
    pipeline.arrive(batches[2])
    pipeline.stream()
    pipeline.lake.open_delta_table(spark, "bronze.messages").optimize().executeCompaction()
    with monkeypatch.context() as patch:
        if large:
            by_spark_alone(patch)
        assert pipeline.merge() == 1
    pipeline.arrive(batches[3])
    judged = [fact for batch in batches[:3] for fact in batch]
    assert_views_are_the_truth(spark, pipeline.settings, judged, batches[3])
    shutil.rmtree(
        open_stored_stream_times(pipeline.settings, job.LAYER).folder
    )  # what was noted there is looked up in bronze
    pipeline.stream()
    with monkeypatch.context() as patch:  # and now in the driver; Spark merges, and names no session
        patch.setattr("sessionlake.delta.storage.spark_writes._MAX_NAMED_VALUES", 2)
        limit(patch, driver_cuts=10**6, rewritten_rows=0)
        assert pipeline.merge() == 1
    messages = [message for batch in batches for message in batch]
    assert_silver_is_the_truth(spark, pipeline.settings, messages)

    states = dict(read_shard_states(spark, pipeline.settings))
    stats = [compute_shard_state_stats(shard, state) for shard, state in states.items()]
    held = sum(row["held"] for row in rows_of(spark, pipeline.lake, LEDGER, ("layer", eq, SILVER)))
    assert sum(shard.held for shard in stats) == held > 0
    holding = next(
        ShardState.decode_shard_state(state, pipeline.settings.capture.declared_columns) for state in states.values()
    )
    assert holding.held_messages is not None
    topic, partition, session = (holding.held_messages[name][0].as_py() for name in SESSION)
    shard = compute_shard_of_session(spark, pipeline.settings, topic, session)
    session_state = find_session_state(states[shard], topic, partition, session)
    assert {tuple(message) for message in session_state["held"]} == {("offset", "seq", "ts", "size")}

    before = pipeline.content()
    pipeline.lose_last_commit()
    pipeline.stream()
    assert pipeline.merge() == 0
    assert pipeline.content() == before


@pytest.mark.soak
def test_what_the_cluster_does_with_large_batches_it_does_with_small_ones_too(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark_alone(monkeypatch)
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))[:3]
    for part in (batches[:2], batches[2:]):
        for batch in part:
            pipeline.arrive(batch)
        pipeline.stream()
        assert pipeline.merge() == 1
    assert_silver_is_the_truth(spark, pipeline.settings, [message for batch in batches for message in batch])


def test_a_violation_under_fail_commits_nothing_and_stops_again_until_someone_decides(
    spark: Any, location: dict[str, Any]
) -> None:
    pipeline = Pipeline(spark, location, OnViolation.FAIL)
    now = 1_700_000_000_000
    texts = [b'{"type":"snapshot","seq":0,"ts":0,"rows":[{"id":"a"}]}', b'{"type":"heartbeat","seq":2,"ts":0}']
    messages = [KafkaMessage("capture.a", 0, offset, now, b"s", text) for offset, text in enumerate(texts)]
    pipeline.arrive(messages)
    for _ in range(2):
        with pytest.raises(IntegrityViolationError, match=r"gap: session 's'.*offset 1: expected seq 1, found seq 2"):
            pipeline.stream()
        assert not any(rows_of(spark, pipeline.lake, f"silver.{table}") for table in APPENDED)
        assert rows_of(spark, pipeline.lake, LEDGER) == []
    assert read_message_that_stopped_layer(pipeline.settings) is not None

    for session, offset in (("t", None), ("t", 1), ("s", 0), ("s", 2)):
        with pytest.raises(UsageError, match=r"silver stopped at session 's', topic capture\.a, partition 0, offset 1"):
            record_decision(pipeline.settings, spark, session, OperatorDecision.ACCEPT_GAP, offset=offset, who="me")
    record_decision(pipeline.settings, spark, "s", OperatorDecision.ISOLATE, who="me", why="a mistake")
    withdraw_decision(pipeline.settings, spark, "s", who="me")
    record_decision(pipeline.settings, spark, "s", OperatorDecision.ACCEPT_GAP, who="me", why="the sensor was off")
    with pytest.raises(UsageError, match="a decision is already recorded: accept-gap"):
        record_decision(pipeline.settings, spark, "s", OperatorDecision.ISOLATE, who="me")
    pipeline.stream()
    [entry] = rows_of(spark, pipeline.lake, LEDGER)
    assert (entry["applied"], entry["decisions"]) == (
        2,
        [{"topic": "capture.a", "partition": 0, "session_id": "s", "offset": 1, "decision": "accept-gap"}],
    )
    [event] = rows_of(spark, pipeline.lake, EVENTS)
    assert (event["event"], event["action"], event["offset"]) == ("gap", "accepted", 1)
    assert read_message_that_stopped_layer(pipeline.settings) is None
    with pytest.raises(
        UsageError, match=r"no layer has stopped at session 's', offset 1.*silver is not known to have stop"
    ):
        record_decision(pipeline.settings, spark, "s", OperatorDecision.ISOLATE, offset=1, who="me")
    with pytest.raises(UsageError, match="silver has acted on the decision, so it cannot be withdrawn"):
        withdraw_decision(pipeline.settings, spark, "s", who="me")

    # The state is that of the attempt that was committed, not of the ones that were given up.
    pipeline.arrive([KafkaMessage("capture.a", 0, 2, now, b"s", b'{"type":"heartbeat","seq":3,"ts":0}')])
    pipeline.stream()
    states = dict(read_shard_states(spark, pipeline.settings))
    session_state = find_session_state(
        states[compute_shard_of_session(spark, pipeline.settings, "capture.a", "s")], "capture.a", 0, "s"
    )
    assert (session_state["last_seq"], session_state["messages"], session_state["gaps"], session_state["held"]) == (
        3,
        3,
        1,
        [],
    )


def test_a_hole_in_bronze_stops_silver_before_it_commits_anything(spark: Any, location: dict[str, Any]) -> None:
    pipeline = Pipeline(spark, location)
    good = b'{"type":"heartbeat","seq":0,"ts":0}'
    pipeline.arrive([KafkaMessage("capture.a", 0, offset, 0, b"s", good) for offset in (0, 1, 3)])
    with pytest.raises(OffsetHoleError, match="of the offsets 0 to 3, 1 are missing"):
        pipeline.stream()
    assert not any(rows_of(spark, pipeline.lake, f"silver.{table}") for table in APPENDED)
