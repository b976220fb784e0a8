"""Feeds in a lake without a broker: changed mappings, new columns, quarantine after a corrected mapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from operator import eq
from typing import Any

import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.cli.show import OutputFormat
from sessionlake.cli.trace import show_trace
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import QUARANTINE
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.history.asof import session_as_of
from sessionlake.history.content import FeedReadingExplanation
from sessionlake.history.fate import MessageFate
from sessionlake.history.trace import trace
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.notebook.context import NotebookContext
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.operations.rebuild.processors import rebuild_processor
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.processors import job as processors
from sessionlake.settings.model import ProcessorSettings, Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.silver.decisions import record_decision
from sessionlake.silver.job import SilverStoppedError
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.feed_lake import (
    START,
    assert_rows_are_the_definition,
    books,
    capture_of,
    message_of_books,
    part_of,
)
from support.lakes import rows_of, write_bronze

TOPIC = "p.books.a"


def lake_with(folder: Any, *feeds: dict[str, Any]) -> Settings:
    """Settings of a lake with these feeds."""
    return Settings(home=folder, capture=capture_of(*feeds), silver=SilverSettings(shards=3))


def arrive(
    spark: Any, settings: Settings, *values: bytes, first: int = 0, topic: str = TOPIC, keys: Sequence[bytes] = ()
) -> list[KafkaRecord]:
    """Writes messages of a topic into bronze, and returns them."""
    lake = Lake(settings)
    lake.create_or_update_tables(spark, ["bronze.messages", "ops.ledger"])
    at = [
        (topic, 0, first + number, START + 1000 * (first + number), keys[number] if keys else b"k", value)
        for number, value in enumerate(values)
    ]
    write_bronze(spark, lake, [KafkaMessage(*message) for message in at])
    span = OffsetRange(topic, 0, first, first + len(values) - 1, len(values))
    version = lake.latest_version(spark, "bronze.messages")
    written = TableOutput("bronze.messages", version, len(values))
    entry = LedgerEntry(
        "bronze", Txn("bronze", version), "kafka", datetime.now(UTC), offsets=(span,), outputs=(written,)
    )
    Ledger(lake).write_entry(spark, replace(entry, messages=len(values), applied=len(values)))
    return [KafkaRecord(*message) for message in at]


def through_silver(spark: Any, settings: Settings) -> None:
    """Runs silver and its merges until they have read all of bronze."""
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()


def with_fee(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule whose rows also set the column `fee`."""
    parts = [part | {"row": part["row"] | {"fee": ".[2]"}} for part in rule.get("rows", ())]
    return rule | ({"rows": parts} if parts else {})


def test_a_changed_mapping_is_refused_until_a_rebuild_which_brings_quarantined_messages_in(spark, tmp_path):
    strict = books("p", time={"path": "when"})  # no message has this field
    settings = lake_with(tmp_path, strict)
    full = message_of_books(0, part_of("A", full=True, bids=[["1", "1"]]), part_of("B", full=True, asks=[["2", "2"]]))
    sent = arrive(spark, settings, full)
    through_silver(spark, settings)
    assert_rows_are_the_definition(spark, settings, sent)
    assert [row["reason"] for row in rows_of(spark, Lake(settings), "silver.quarantine")] == ["bad_path"]
    corrected = lake_with(tmp_path, books("p"))
    sent += arrive(spark, corrected, message_of_books(1, part_of("A", bids=[["1", "5"]])), first=1)
    with pytest.raises(LakeError, match=r"topic p\.books\.a .* feed 'books' has changed in: time.*rebuild silver"):
        job.start(spark, corrected, once=True)
    with pytest.raises(LakeError, match="rebuild silver: the feeds in the configuration read the messages of topic"):
        rebuild_silver_tables(spark, corrected, selection=SessionSelection(TOPIC, ("A",)))
    rebuild_silver_tables(spark, corrected)
    assert_rows_are_the_definition(spark, corrected, sent, ledger=False)
    assert rows_of(spark, Lake(settings), "silver.quarantine") == []
    sent += arrive(spark, corrected, message_of_books(2, part_of("B", asks=[["2", "0"], ["3", "1"]])), first=2)
    through_silver(spark, corrected)
    assert_rows_are_the_definition(spark, corrected, sent, ledger=False)


_COUNTER = """
from dataclasses import dataclass
from sessionlake.processors import Processor

@dataclass
class Count:
    seen: int = 0

class Counter(Processor[Count]):
    state = Count
    output = {"seen": "bigint"}

    def on_message(self, state, message):
        state.seen += 1
        yield {"seen": state.seen}
"""


def test_a_processor_refuses_a_changed_mapping_until_its_rebuild(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "feed_counter.py").write_text(_COUNTER)
    own = ProcessorSettings(name="counter", target="feed_counter:Counter")
    settings, corrected = (
        lake_with(tmp_path, feed).model_copy(update={"processors": (own,)})
        for feed in (books("p", time={"path": "when"}), books("p"))
    )
    full = message_of_books(0, part_of("A", full=True, bids=[["1", "1"]]))
    arrive(spark, settings, full)
    processors.start(spark, settings, "counter", once=True).wait()
    assert rows_of(spark, Lake(settings), own.output_table) == []
    with pytest.raises(LakeError, match=r"feed 'books' has changed in: time.*rebuild processor:counter"):
        processors.start(spark, corrected, "counter", once=True)
    rebuild_processor(spark, corrected, "counter")
    assert [row["seen"] for row in rows_of(spark, Lake(corrected), own.output_table)] == [1]
    arrive(spark, corrected, message_of_books(1, part_of("A", bids=[["1", "5"]])), first=1)
    processors.start(spark, corrected, "counter", once=True).wait()
    assert sorted(row["seen"] for row in rows_of(spark, Lake(corrected), own.output_table)) == [1, 2]


def test_new_columns_and_new_feeds_start_at_once(spark, tmp_path):
    settings = lake_with(tmp_path, books("p"))
    arrive(spark, settings, message_of_books(0, part_of("A", full=True, bids=[["1", "1", 7.5]])))
    through_silver(spark, settings)
    more = books("p", columns=books("p")["columns"] | {"fee": "double"})
    more["messages"] = [with_fee(rule) for rule in more["messages"]]
    wider = lake_with(tmp_path, more, books("q", name="others"))
    arrive(spark, wider, message_of_books(1, part_of("A", bids=[["2", "1", 2.5]])), first=1)
    through_silver(spark, wider)
    rows = rows_of(spark, Lake(wider), "silver.session_rows")
    assert {(row["row_id"], row["fee"]) for row in rows} == {('["bid",1]', None), ('["bid",2]', 2.5)}


def test_messages_wait_for_their_snapshot_over_batches_and_a_rebuild(spark, tmp_path):
    settings = lake_with(tmp_path, books("p", starts_with={"snapshot": True, "hold": 2}))
    early = [message_of_books(number, part_of("A", bids=[[str(number), "1"]])) for number in (1, 2, 3)]
    arrive(spark, settings, *early)
    through_silver(spark, settings)
    counted = [row for row in rows_of(spark, Lake(settings), "ops.ledger", ("layer", eq, "silver")) if row["messages"]]
    assert [(row["quarantined"], row["held"]) for row in counted] == [(1, 2)]
    assert [(row["offset"], row["reason"]) for row in rows_of(spark, Lake(settings), QUARANTINE)] == [(0, "orphan")]
    assert [fate_of(settings, offset) for offset in range(3)] == [
        MessageFate.QUARANTINED,
        MessageFate.HELD,
        MessageFate.HELD,
    ]
    assert "held back until a snapshot of its session arrives" in shown_trace(settings, 2)

    rebuild_silver_tables(spark, settings)
    full = message_of_books(2, part_of("A", full=True, bids=[["2", "7"], ["9", "9"]]))
    arrive(spark, settings, full, message_of_books(4, part_of("A", bids=[["9", "0"]])), first=3)
    through_silver(spark, settings)
    rows = rows_of(spark, Lake(settings), "silver.session_rows")
    assert {(row["row_id"], row["qty"]) for row in rows} == {('["bid",2]', 7.0), ('["bid",3]', 1.0)}
    assert [fate_of(settings, offset) for offset in (1, 2, 3)] == [
        MessageFate.DUPLICATE,
        MessageFate.APPLIED,
        MessageFate.APPLIED,
    ]
    assert "held back until batch" in shown_trace(settings, 2)
    session = rows_of(spark, Lake(settings), "silver.sessions")[0]
    assert [session[name] for name in ("status", "messages", "duplicates", "gaps")] == ["open", 3, 1, 0]
    assert verify_silver_tables(spark, settings).is_exact


def fate_of(settings: Settings, offset: int) -> MessageFate:
    return trace(Lake(settings).reader(), settings, TOPIC, 0, offset).judgement.fate


def shown_trace(settings: Settings, offset: int) -> str:
    out = StringIO()
    show_trace(trace(Lake(settings).reader(), settings, TOPIC, 0, offset), OutputFormat.TABLE, out)
    return out.getvalue()


def views_of(settings: Settings) -> Settings:
    """Settings with a further feed that takes a topic which an earlier feed also matches."""
    second = books("p", name="rest", topics=r"p\..+", columns=books("p")["columns"] | {"raw": "variant"})
    second["messages"] = [with_raw(rule) for rule in second["messages"]]
    return settings.model_copy(update={"capture": capture_of(books("p"), second)})


def with_raw(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule whose rows also set the column `raw`."""
    parts = [part | {"row": part["row"] | {"raw": "."}} for part in rule.get("rows", ())]
    return rule | ({"rows": parts} if parts else {})


def test_each_feed_has_views_of_its_own_topics_and_columns(spark, tmp_path):
    settings = views_of(lake_with(tmp_path))
    full = message_of_books(0, part_of("A", full=True, bids=[["1", "1"]]))
    arrive(spark, settings, full)
    arrive(spark, settings, full, topic="p.other")
    through_silver(spark, settings)

    def said(sql: str) -> list[dict[str, Any]]:
        names, rows = fetch_query_result(spark, settings, sql)
        return [dict(zip(names, row, strict=True)) for row in rows]

    first, second = said("SELECT * FROM silver.books"), said("SELECT * FROM silver.rest")
    assert [row["topic"] for row in first + second] == [TOPIC, "p.other"]
    ends = ["_rescued", "_time", "_seq", "_offset", "partition"]
    assert list(first[0]) == ["topic", "session_id", "side", "price", "qty", *ends]
    assert (first[0]["side"], str(first[0]["price"]), first[0]["qty"]) == ("bid", "1.00", 1.0)
    assert first[0]["_time"] == datetime.fromtimestamp(START / 1000, UTC)
    assert second[0]["raw"] == '["1","1"]'
    assert said("SELECT variant_get(raw, '$[0]', 'string') AS price FROM silver.rest") == [{"price": "1"}]
    changes = said("SELECT change, side, `_set` FROM silver.books_changes ORDER BY ordinal")
    assert [row["change"] for row in changes] == ["clear", "upsert"]
    assert changes[1]["_set"] == ["side", "price", "qty", "raw"]
    book = NotebookContext.__new__(NotebookContext)
    book.spark, book.settings, book._lake = spark, settings, Lake(settings)
    assert book.read_table("silver.rest").count() == 1
    book.require_tables("silver.rest_changes")


def test_trace_shows_feed_rule_and_each_part_of_a_message_and_why_one_is_refused(spark, tmp_path):
    settings = lake_with(tmp_path, books("p"))
    both = part_of("A", full=True, bids=[["1", "1"]]), part_of("B", full=True)
    wrong = message_of_books(2, part_of("A", bids=[["x", "1"]]))
    arrive(spark, settings, message_of_books(0, *both), b'{"event": "subscribed"}', wrong)
    through_silver(spark, settings)
    reader = Lake(settings).reader()
    split, ignored, refused = (trace(reader, settings, TOPIC, 0, offset) for offset in range(3))
    assert split.message.reading == FeedReadingExplanation("books", rules=(2,))
    assert (split.message.session_id, split.judgement.fate, len(split.changes)) == ("A", MessageFate.APPLIED, 2)
    (other,) = split.other_parts
    assert (other.session_id, other.type, other.judgement.fate, len(other.changes)) == ("B", "snapshot", "applied", 1)
    assert other.session is not None
    assert other.session["session_id"] == "B"
    assert (ignored.judgement.fate, ignored.message.reading) == (
        MessageFate.IGNORED,
        FeedReadingExplanation("books", rules=(1,)),
    )
    assert (refused.judgement.fate, refused.judgement.reason) == (MessageFate.QUARANTINED, "bad_value")
    reading = refused.message.reading
    assert reading is not None
    assert (reading.path, "column price is decimal(12,2)" in str(reading.why)) == (".[0]", True)
    shown = [StringIO() for _ in range(3)]
    for found, out in zip((split, ignored, refused), shown, strict=True):
        show_trace(found, OutputFormat.TABLE, out)
    first, second, third = (out.getvalue() for out in shown)
    assert "books, rule 2" in first
    assert "part 2 of 2, snapshot, seq 0: applied" in first
    assert "ignored" in second
    assert "books refuses it at .[0]" in third


def forget(spark: Any, settings: Settings, session: str) -> Any:
    """Forgets a session, as the command does."""
    with claim_layers(spark, settings, Layer.ALL, "forgets", "retention", "forget"):
        return SessionForgetter(spark, settings).forget_session(session)


def test_forget_finds_a_session_inside_messages_and_leaves_those_of_others_alone(spark, tmp_path):
    settings = lake_with(tmp_path, books("p"))
    full = [part_of(name, full=True, bids=[["1", "1"]]) for name in ("secret", "B", "C")]
    sent = arrive(spark, settings, message_of_books(0, full[0]), message_of_books(1, full[1], full[2]))
    sent += arrive(spark, settings, message_of_books(2, part_of("secret", bids=[["2", "1"]])), first=2)
    through_silver(spark, settings)
    receipt = forget(spark, settings, "secret")
    assert (receipt.messages, receipt.report["search"]["found"]) == (2, [])
    rows = rows_of(spark, Lake(settings), "bronze.messages")
    assert {row["offset"] for row in rows if row["value"] is None} == {0, 2}
    assert_rows_are_the_definition(spark, settings, sent[1:2], ledger=False)
    sent += arrive(spark, settings, message_of_books(3, part_of("B", bids=[["3", "1"]])), first=3)
    through_silver(spark, settings)
    assert verify_silver_tables(spark, settings).is_exact
    assert_rows_are_the_definition(spark, settings, [sent[1], sent[3]], ledger=False)


def test_each_session_of_a_message_is_decided_about_alone_and_shown_as_of_a_moment(spark, tmp_path):
    given = capture_of(books("p", order={"seq": "u"}), on_violation="fail")
    settings = Settings(home=tmp_path, capture=given, silver=SilverSettings(shards=3))
    both = [part_of(name, full=True, bids=[["1", "1"]]) for name in "AB"]
    gap = [part_of(name, bids=[["2", "2"]]) for name in "AB"]
    arrive(spark, settings, message_of_books(0, *both), message_of_books(2, *gap))
    for session, decision in (("A", OperatorDecision.SKIP), ("B", OperatorDecision.ACCEPT_GAP)):
        with pytest.raises(SilverStoppedError, match=f"session '?{session}'?"):
            through_silver(spark, settings)
        record_decision(settings, spark, session, decision, who="me")
    through_silver(spark, settings)
    lake = Lake(settings)
    (refused,) = rows_of(spark, lake, "silver.quarantine")
    assert (refused["session_id"], refused["offset"], refused["reason"]) == ("A", 1, "skipped")
    assert refused["value"] == message_of_books(2, *gap)
    (entry,) = rows_of(spark, lake, "ops.ledger", ("layer", eq, "silver"))
    assert {name: entry[name] for name in ("messages", *COUNTS)} == {
        "messages": 2, "parts": 4, "applied": 3, "quarantined": 1, "duplicates": 0, "held": 0, "ignored": 0,
    }  # fmt: skip

    def ids(session: str, offset: int) -> list[str]:
        return session_as_of(settings, session, offset=offset)["row_id"].to_pylist()

    assert [ids("A", 1), ids("B", 0), ids("B", 1)] == [['["bid",1]'], ['["bid",1]'], ['["bid",1]', '["bid",2]']]
    traced = trace(lake.reader(), settings, TOPIC, 0, 1)
    assert [traced.judgement.reason, traced.other_parts[0].judgement.fate] == ["skipped", MessageFate.APPLIED]
