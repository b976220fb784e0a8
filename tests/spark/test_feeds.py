"""Feeds in a lake without a broker: changed mappings, new columns, quarantine after a corrected mapping."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.notebook.book import Book
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.settings.model import Settings, SilverSettings
from sessionlake.silver import job
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


def arrive(spark: Any, settings: Settings, *values: bytes, first: int = 0, topic: str = TOPIC) -> list[KafkaRecord]:
    """Writes messages of a topic into bronze, and returns them."""
    lake = Lake(settings)
    lake.ensure(spark, ["bronze.messages", "ops.ledger"])
    at = [
        (topic, 0, first + number, START + 1000 * (first + number), b"k", value) for number, value in enumerate(values)
    ]
    write_bronze(spark, lake, [KafkaMessage(*message) for message in at])
    return [KafkaRecord(*message) for message in at]


def through_silver(spark: Any, settings: Settings) -> None:
    """Runs silver and its merges until they have read all of bronze."""
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).catch_up()


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
    with pytest.raises(LakeError, match="rebuild silver: the messages of topic"):
        rebuild_silver_tables(spark, corrected, selection=SessionSelection(TOPIC, ("A",)))
    rebuild_silver_tables(spark, corrected)
    assert_rows_are_the_definition(spark, corrected, sent, ledger=False)
    assert rows_of(spark, Lake(settings), "silver.quarantine") == []
    sent += arrive(spark, corrected, message_of_books(2, part_of("B", asks=[["2", "0"], ["3", "1"]])), first=2)
    through_silver(spark, corrected)
    assert_rows_are_the_definition(spark, corrected, sent, ledger=False)


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
    book = Book.__new__(Book)
    book.spark, book.settings, book._lake = spark, settings, Lake(settings)
    assert book.table("silver.rest").count() == 1
    book.require("silver.rest_changes")
