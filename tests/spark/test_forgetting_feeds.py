"""A session is forgotten whose messages have other sessions, too, and those have all that they had."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest

from sessionlake.cli.show import OutputFormat
from sessionlake.cli.trace import show_trace
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, EVENTS, LEDGER, MESSAGES, QUARANTINE, ROWS, SESSIONS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import UsageError
from sessionlake.history.asof import session_as_of
from sessionlake.history.fate import MessageFate
from sessionlake.history.trace import trace
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.protocol.erased import ERASED_KEY, PARTS_ERASED_HEADER
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.model import Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder
from support.lakes import rows_of, write_bronze
from support.split_streams import NAMES, TOPIC, capture_of_split, split_messages

GONE, OTHER = "secret", "meter-7"


def settings_of(location: dict[str, Any], capture: CaptureSettings) -> Settings:
    return Settings(**location, capture=capture, silver=SilverSettings(shards=3))


def run_silver(spark: Any, settings: Settings, messages: list[KafkaMessage]) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [MESSAGES, LEDGER])
    write_bronze(spark, lake, messages)
    offsets = [
        OffsetRange(TOPIC, partition, min(own), max(own), len(own))
        for partition in (0, 1)
        if (own := [message.offset for message in messages if message.partition == partition])
    ]
    version = lake.latest_version(spark, MESSAGES)
    written = TableOutput(MESSAGES, version, len(messages))
    entry = LedgerEntry(
        "bronze", Txn("bronze", version), "kafka", datetime.now(UTC), offsets=tuple(offsets), outputs=(written,)
    )
    Ledger(lake).write_entry(spark, replace(entry, messages=len(messages), applied=len(messages)))
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()


def forget(spark: Any, settings: Settings, session: str) -> Any:
    with claim_layers(spark, settings, Layer.ALL, "forgets", "retention", "forget"):
        return SessionForgetter(spark, settings).forget_session(session)


def tables_of_others(spark: Any, settings: Settings) -> dict[str, Counter[str]]:
    """The rows of other sessions, without the number of a batch and what quarantine has of bronze."""
    left_out = {"_batch", "value", "_applied_at"}
    return {
        table: Counter(
            repr({name: value for name, value in row.items() if name not in left_out})
            for row in rows_of(spark, Lake(settings), table)
            if row["session_id"] != GONE
        )
        for table in (CHANGES, ROWS, SESSIONS, CUTS, EVENTS, QUARANTINE)
    }


def require_plain_rows(spark: Any, settings: Settings, messages: list[KafkaMessage], gone: str | None) -> None:
    """Checks rows and statuses of all sessions but one against a fold of the messages as they were sent."""
    folder = Folder(settings.capture, 1, random.Random(0))
    folder.batch(messages)
    columns = ["price", "qty", "note"]
    expected = {
        (*session, row_id): [row[name] for name in columns]
        for session, rows in folder.silver.rows.items()
        for row_id, row in rows.items()
        if session[2] != gone
    }
    found = {
        tuple(row[name] for name in ("topic", "partition", "session_id", "row_id")): [row[name] for name in columns]
        for row in rows_of(spark, Lake(settings), ROWS)
    }
    assert found == expected
    states = {key: row["status"] for key, row in folder.silver.sessions.items() if key[2] != gone}
    assert {
        (row["topic"], row["partition"], row["session_id"]): row["status"]
        for row in rows_of(spark, Lake(settings), SESSIONS)
    } == states


def require_quarantine_as_bronze(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    bronze = {(row["partition"], row["offset"]): row["value"] for row in rows_of(spark, lake, MESSAGES)}
    for row in rows_of(spark, lake, QUARANTINE):
        assert row["value"] == bronze[row["partition"], row["offset"]]


def require_no_readable_message_of(spark: Any, settings: Settings, receipt: Any, session: str) -> None:
    """Checks that the id is left only in messages that the feed refuses, or whose part of this id it ignores."""
    lake, name = Lake(settings), f'"{session}"'.encode()
    refused = {(r["partition"], r["offset"]) for r in rows_of(spark, lake, QUARANTINE) if r["session_id"] is None}
    left = [row for row in rows_of(spark, lake, MESSAGES) if name in (row["value"] or b"")]
    assert all((row["partition"], row["offset"]) in refused or b'"status"' in row["value"] for row in left)
    places = {place.split(": ")[0].rsplit(", ", 1)[-1] for place in receipt.report["search"]["found"]}
    assert places == ({"column value"} if left else set())


def shown_trace(spark: Any, settings: Settings, partition: int, offset: int) -> str:
    out = StringIO()
    show_trace(trace(Lake(settings).reader(spark), settings, TOPIC, partition, offset), OutputFormat.TABLE, out)
    return out.getvalue()


@pytest.mark.parametrize("form", ["objects", "chain"])
def test_a_session_leaves_messages_of_others_who_keep_all_they_had(
    spark: Any, location: dict[str, Any], form: str
) -> None:
    settings = settings_of(location, capture_of_split(form))
    messages = split_messages(form, random.Random(3), 70)
    run_silver(spark, settings, messages[:25])
    run_silver(spark, settings, messages[25:50])
    lake, before = Lake(settings), tables_of_others(spark, settings)
    sent = {(row["partition"], row["offset"]): row for row in rows_of(spark, lake, MESSAGES)}
    places = [
        (row["partition"], row["offset"]) for row in rows_of(spark, lake, QUARANTINE) if row["session_id"] == OTHER
    ]
    past = [session_as_of(settings, OTHER, partition=0, offset=offset, spark=spark).to_pylist() for offset in (12, 24)]

    receipt = forget(spark, settings, GONE)

    require_no_readable_message_of(spark, settings, receipt, GONE)
    assert tables_of_others(spark, settings) == before
    require_quarantine_as_bronze(spark, settings)
    left = {(row["partition"], row["offset"]): row for row in rows_of(spark, lake, MESSAGES)}
    whole = [place for place, row in left.items() if row["key"] == ERASED_KEY]
    shared = [
        place for place, row in left.items() if PARTS_ERASED_HEADER in [one["key"] for one in row["headers"] or ()]
    ]
    assert receipt.messages == len(whole) + len(shared)
    assert all(left[place]["headers"] is None for place in whole)
    assert {place for place in whole if left[place]["value"]} == ({*whole} if form == "chain" else set())
    for place, row in left.items():
        assert row["timestamp"] == sent[place]["timestamp"]
        assert (row == sent[place]) == (place not in {*whole, *shared})
        assert place not in shared or (row["key"], len(row["value"])) == (
            sent[place]["key"],
            len(sent[place]["value"]),
        )
    assert {*shared} & {*places}, "a message of another session is in quarantine"
    require_plain_rows(spark, settings, messages[:50], GONE)
    assert [
        session_as_of(settings, OTHER, partition=0, offset=offset, spark=spark).to_pylist() for offset in (12, 24)
    ] == past
    traced = trace(lake.reader(spark), settings, TOPIC, *shared[0])
    assert {traced.message.session_id, *(part.session_id for part in traced.other_parts)} < {*NAMES}
    assert "the parts of forgotten sessions are erased" in shown_trace(spark, settings, *shared[0])
    assert trace(lake.reader(spark), settings, TOPIC, *whole[0]).judgement.fate is MessageFate.ERASED
    assert "erased with its session" in shown_trace(spark, settings, *whole[0])
    assert verify_silver_tables(spark, settings).is_exact


@pytest.mark.soak  # the test above verifies the same lake, and spark/test_forgetting rebuilds one
@pytest.mark.parametrize("form", ["objects", "chain"])
def test_a_rebuild_after_that_gives_the_same_and_a_second_session_leaves(
    spark: Any, location: dict[str, Any], form: str
) -> None:
    settings = settings_of(location, capture_of_split(form))
    messages = split_messages(form, random.Random(3), 70)
    run_silver(spark, settings, messages[:50])
    before = tables_of_others(spark, settings)
    forget(spark, settings, GONE)
    assert verify_silver_tables(spark, settings).is_exact
    rebuild_silver_tables(spark, settings)
    assert tables_of_others(spark, settings) == before
    run_silver(spark, settings, messages[50:])
    require_no_readable_message_of(spark, settings, forget(spark, settings, OTHER), OTHER)
    assert verify_silver_tables(spark, settings).is_exact


def test_a_message_in_which_the_session_s_bytes_are_not_known_is_refused(spark: Any, location: dict[str, Any]) -> None:
    feed = {"name": "both", "topics": "split", "decoder": "support.feed_decoders:Both", "key": ["price"]}
    given = CaptureSettings.model_validate({"feeds": [feed | {"columns": {"price": "bigint"}}]})
    settings = settings_of(location, given)
    run_silver(spark, settings, split_messages("objects", random.Random(0), 2))
    with pytest.raises(UsageError, match=r"2 messages of session 'secret' .* partition \d, offset \d.*decoder class"):
        forget(spark, settings, GONE)
