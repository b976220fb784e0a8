"""Silver built once more: equal to the live tables, put in their place, and gone on from."""

from __future__ import annotations

import json
import random
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, LEDGER, RULE_EVENTS
from sessionlake.delta.schemas.names import RULES as RULES_TABLE
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold import job as gold
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.history.state import compute_shard_state_stats
from sessionlake.integrity.state import ShardState
from sessionlake.operations.rebuild.compare_states import StatesComparison, compare_states_with_rebuilt
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.protocol.arrow import split_session_key
from sessionlake.settings.model import CaptureSettings, GoldSettings, Settings, SilverSettings, TopicOverrideSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.states import read_shard_states, read_state_and_ledger_batch, read_state_frame
from sessionlake.streaming import handover
from sessionlake.streaming.manifest import record_batch_commit
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, rows_of, write_bronze, write_rows
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut

RULES = tuple(
    TopicOverrideSettings(
        pattern=rf"capture\.{integrity}", integrity=integrity, on_violation=OnViolation.RECORD, lateness="2 s"
    )
    for integrity in Integrity
)
SLICE = 150


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    capture = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES, by_topic=RULES, gap_timeout="5 s")
    return Settings(home=tmp_path / "home", capture=capture, silver=SilverSettings(shards=3))


@pytest.fixture(scope="module")
def batches() -> list[list[KafkaMessage]]:
    rnd = random.Random(9)
    cuts = [list(cut(rnd, StreamMaker(rnd, LIGHT, [f"capture.{i}"]).make(90), 3)) for i in Integrity]
    return [[message for part in parts for message in part] for parts in zip(*cuts, strict=True)]


def run(spark: Any, settings: Settings, *batches: list[KafkaMessage]) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, ["bronze.messages"])
    for batch in batches:
        write_bronze(spark, lake, batch)
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()


def test_a_rebuild_equals_the_live_tables_replaces_them_and_the_stream_goes_on_from_it(
    spark: Any, settings: Settings, batches: list[list[KafkaMessage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(settings)
    run(spark, settings, *batches[:2])
    bronze = lake.open_delta_table(spark, "bronze.messages")
    bronze.optimize().executeCompaction()
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    bronze.vacuum(0)

    with record_batch_commit(settings, "silver", 7, "any", []):  # the batch dies here
        with pytest.raises(LakeError, match=r"interrupted while it committed batch 7.*run silver --once"):
            verify_silver_tables(spark, settings)
        with pytest.raises(LakeError, match=r"interrupted while it committed batch 7.*run silver --once"):
            rebuild_silver_tables(spark, settings, selection=SessionSelection("capture.strict"))

    row, same = wrong_row(spark, lake)

    # A process that dies before the end of the publication leaves a stream that refuses, and a command that finishes.
    tampered = lake.last_commit(spark, "silver.session_rows").version
    with monkeypatch.context() as patch:
        patch.setattr(handover, "activate_handover", _power_cut)
        with pytest.raises(PowerCutError):
            rebuild_silver_tables(spark, settings)
    for start in (job.start, gold.start):
        with pytest.raises(LakeError, match=r"was interrupted while .* Run `sessionlake rebuild silver`"):
            start(spark, settings, once=True)
    assert rebuild_silver_tables(spark, settings).comparison is None
    assert_silver_is_the_truth(spark, settings, [message for batch in batches[:2] for message in batch], ledger=False)

    history = lake.open_delta_table(spark, "silver.session_rows").history().orderBy("version").collect()
    told = json.loads(history[-1]["userMetadata"])
    assert set(told) == {"sessionlake", "config", "rebuild", "bronze_version"}
    before = lake.read(spark, "silver.session_rows", tampered).where(same).first()
    assert before["qty"] == row["qty"] - 1

    run(spark, settings, batches[2])
    assert_silver_is_the_truth(spark, settings, [message for batch in batches for message in batch], ledger=False)
    numbers = [row["batch_id"] for row in lake.read(spark, LEDGER).where("layer = 'silver'").collect()]
    assert len(numbers) == len(set(numbers))


@pytest.fixture
def looking_up(spark: Any, settings: Settings) -> Settings:
    """With what gold looks changes up for: an enriched table, and a rule."""
    join = {"reference": "sites", "keys": {"site": "session_id"}, "take": {"place": "place"}}
    reference = {"name": "sites", "keys": {"site": "string"}, "columns": {"place": "string"}}
    declared = {"shards": 2, "references": [reference], "enriched": [{"name": "placed", "join": [join]}]}
    settings = settings.model_copy(update={"gold": GoldSettings.model_validate(declared)})
    Lake(settings).create_or_update_tables(spark, [RULES_TABLE])
    said = "{by: [topic, session_id], when: price >= 0 without status = 'zzz' before it}"
    write_rows(spark, Lake(settings), RULES_TABLE, [{"name": "seen", "text": said, "enabled": True}])
    return settings


def taken_in(spark: Any, settings: Settings) -> None:
    """Gold takes in what there is, and has what a recomputation makes of it."""
    gold.start(spark, settings, once=True).wait()
    looked_up = [table for table in list_declared_gold_tables(settings) if isinstance(table, EnrichedTable)]
    assert [
        (one.table, one.first_difference) for one in verify_gold(spark, settings, looked_up) if one.first_difference
    ] == []


@pytest.mark.soak
def test_gold_that_is_behind_is_computed_again_though_a_rebuild_changes_no_row(
    spark: Any, looking_up: Settings, batches: list[list[KafkaMessage]]
) -> None:
    run(spark, looking_up, batches[0][:40])
    taken_in(spark, looking_up)
    run(spark, looking_up, batches[0][40:80])
    done = rebuild_silver_tables(spark, looking_up)
    assert (done.comparison and done.comparison.first_difference, done.empties_gold) == (None, True)
    taken_in(spark, looking_up)
    assert rows_of(spark, Lake(looking_up), RULE_EVENTS)


@pytest.mark.soak
def test_gold_stays_as_it_was_and_is_reported_as_before_where_a_rebuild_changes_no_row(
    spark: Any, looking_up: Settings, batches: list[list[KafkaMessage]]
) -> None:
    def figures() -> list[Any]:
        rows = rows_of(spark, Lake(looking_up), CHANGES)
        place = min((row["topic"], row["partition"], row["_offset"]) for row in rows if row["qty"])
        asked = "SELECT * FROM figures_with({!r}, {}, {})".format(*place)  # noqa: S608 - quoted values of a row made here
        return sorted(fetch_query_result(spark, looking_up, asked)[1], key=repr)

    run(spark, looking_up, batches[0])
    taken_in(spark, looking_up)
    before = figures()
    assert before
    assert not rebuild_silver_tables(spark, looking_up).empties_gold
    assert figures() == before
    taken_in(spark, looking_up)
    run(spark, looking_up, batches[1])
    assert rebuild_silver_tables(spark, looking_up).empties_gold
    assert figures() == []
    taken_in(spark, looking_up)
    assert figures()


@pytest.mark.soak
def test_one_session_is_rebuilt_with_its_state_and_what_is_wrong_in_states_and_rows_is_found(
    spark: Any, settings: Settings, batches: list[list[KafkaMessage]]
) -> None:
    lake = Lake(settings)
    run(spark, settings, *batches[:2])
    rebuild_silver_tables(spark, settings)
    # The stream has not gone on yet: the session's state, too, is the rebuild's.
    row, _ = wrong_row(spark, lake)
    with pytest.raises(UsageError, match=f"has no message of session 'nope' of topic {row['topic']}"):
        rebuild_silver_tables(spark, settings, selection=SessionSelection(row["topic"], ("nope",)))
    assert dict(read_shard_states(spark, settings))
    one = SessionSelection(row["topic"], (row["session_id"],))
    assert rebuild_silver_tables(spark, settings, selection=one).comparison.different == 1

    # What no table shows is wrong in the state that is handed over, of sessions that nothing comes of any more.
    wrong = assert_wrong_states_are_found(spark, settings, {(message.topic, message.key) for message in batches[2]})
    run(spark, settings, batches[2])
    assert_silver_is_the_truth(spark, settings, [message for batch in batches for message in batch], ledger=False)
    # So is a value in a row that a table shows: both are found, and named; all else is equal.
    row, _ = wrong_row(spark, lake)
    found = verify_silver_tables(spark, settings, slice_messages=SLICE)
    assert (found.different, found.tables) == (1, {"silver.session_rows"})
    assert f"row_id {row['row_id']!r}, qty: found {row['qty'] - 1}, expected {row['qty']}" in (
        found.first_difference or ""
    )
    assert (found.is_exact, found.states.first_difference in wrong) == (False, True)


def wrong_row(spark: Any, lake: Lake) -> tuple[Any, Any]:
    """Changes one value in a row; returns what the row was, and the condition that it meets alone."""
    from pyspark.sql import functions as F

    row = lake.read(spark, "silver.session_rows").where("qty IS NOT NULL").orderBy("topic", "session_id").first()
    same = reduce(and_, (F.col(name) == row[name] for name in ("topic", "session_id", "row_id")))
    lake.open_delta_table(spark, "silver.session_rows").update(same, {"qty": "qty - 1"})
    return row, same


def assert_wrong_states_are_found(spark: Any, settings: Settings, came: set[tuple[str, bytes | None]]) -> list[str]:
    """Leaves the states that are handed over wrong; returns what is to be found."""
    honest = read_state_frame(spark, settings).localCheckpoint()
    assert compare_states_with_rebuilt(spark, settings, honest) == StatesComparison(remembered(spark, settings))
    wrong = tamper(settings, came)
    assert compare_states_with_rebuilt(spark, settings, honest).first_difference == wrong[0]

    other = settings.model_copy(update={"silver": SilverSettings(shards=5)})
    assert compare_states_with_rebuilt(spark, other, honest).skipped == "they have 3 shards, but silver.shards is 5"
    batch, last = read_state_and_ledger_batch(spark, settings)
    with pytest.MonkeyPatch.context() as patch:  # as where a stream has died before its checkpoint
        patch.setattr(
            "sessionlake.operations.rebuild.compare_states.read_state_and_ledger_batch", lambda *_: (batch, last + 1)
        )
        skipped = compare_states_with_rebuilt(spark, settings, honest).skipped
    assert (
        skipped
        == f"they are of batch {batch}, and the ledger's last is {last + 1}: run `sessionlake run silver --once`"
    )
    return wrong


def remembered(spark: Any, settings: Settings) -> int:
    count = sum(compute_shard_state_stats(*state).sessions for state in read_shard_states(spark, settings))
    assert count > 0
    return count


def tamper(settings: Settings, came: set[tuple[str, bytes | None]]) -> list[str]:
    """Changes, in the states that are handed over, what is known of where sessions end; returns what is to be found.

    Args:
        came: topic and key of the sessions to leave as they are.
    """
    findings = []
    for shard in handover.list_shards_in_handover(settings):
        file = handover.find_active_handover_folder(settings) / f"{shard}.state"
        state = ShardState.decode_shard_state(file.read_bytes(), settings.capture.declared_columns)
        wrong = ShardState(state.keys, state.cursors.copy(), state.variable_parts, state.clock, state.held_messages)
        for key, place in sorted((key, place) for place, key in enumerate(state.keys.to_pylist())):
            topic, partition, session = split_session_key(key)
            if (topic, session.encode()) not in came:
                wrong.cursors["end_seq"][place] = 77
                due = state.cursors["end_seq"][place]
                values = f"end_seq: found 77, rebuilt {'nothing' if due < 0 else due}"
                findings.append(f"shard {shard}, topic {topic}, partition {partition}, session {session!r}, {values}")
        file.write_bytes(wrong.encode_shard_state(settings.capture.declared_columns))
    return findings


class PowerCutError(Exception):
    pass


def _power_cut(*_: object) -> None:
    raise PowerCutError
