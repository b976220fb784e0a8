"""The form of sessionlake, described as a feed, gives the same tables as the decoder of that form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sessionlake.feeds.events import MessageRefusal
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.protocol.message import INT64_MAX, build_message_structs_and_decoders
from sessionlake.protocol.parse import ParsedMessage, find_reason_to_refuse_key, parse_message_value
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity
from sessionlake_lab.truth import KafkaMessage
from support.folding import Silver, fold, of_silver
from support.streams import COLUMNS, MAX_BYTES, cut
from unit.test_law import CASES, STREAMS, assert_same, capture, every, interval, stream

OWN_FORM: dict[str, Any] = {
    "name": "own",
    "uses": "sessionlake",
    "topics": ".*",
    "columns": {"id": "string", **COLUMNS},
}
REASONS: dict[str, set[str]] = {
    "bad_key": {"bad_path", "bad_value", "no_rule"},
    "bad_type": {"no_rule"},
    "bad_seq": {"bad_path", "bad_value"},
    "bad_ts": {"bad_path", "bad_value"},
    "bad_rows": {"bad_path", "bad_value", "bad_row_id"},
    "bad_row_id": {"bad_path", "bad_value", "bad_row_id"},
    "bad_column": {"bad_path", "bad_value"},
    "not_json": {"not_json", "tombstone"},
    "not_object": {"no_rule"},
}
"""For a message of sessionlake's form that is refused: the reasons that the feed gives. Others are the same."""
LENIENT = {"bad_rows", "bad_ts", "not_json", "duplicate_row_id"}
"""Reasons for which the feed accepts some messages that the decoder refuses: `rows: null`, `ts: 1.0`, a name that
occurs twice in an object, and a row that occurs twice, which a feed applies in order. The other way round, the decoder
accepts a message without seq under class `none`."""
FEED = FeedSettings.model_validate(OWN_FORM)


def as_feed(own: CaptureSettings) -> CaptureSettings:
    """The same rules, with the messages read by a feed."""
    return CaptureSettings(**own.model_dump(exclude={"columns", "feeds"}), feeds=(FEED,))


def verdicts(message: KafkaMessage, own: CaptureSettings) -> tuple[str, str]:
    """What the decoder and the feed say of a message: "ok", or the reason for quarantine."""
    types = build_message_structs_and_decoders(own.declared_columns)
    limits = {"latest_ts": INT64_MAX, "max_bytes": MAX_BYTES, "seq_optional": own.integrity is Integrity.NONE}
    first = find_reason_to_refuse_key(message.key) or parse_message_value(message.value, types, **limits)
    place = (message.topic, message.partition, message.offset, message.timestamp, message.key, message.value)
    second = read_record(FEED.convert_to_feed(), KafkaRecord(*place), max_bytes=MAX_BYTES)
    return "ok" if isinstance(first, ParsedMessage) else str(first), str(second.reason) if isinstance(
        second, MessageRefusal
    ) else "ok"


def comparable(silver: Silver) -> Silver:
    """The tables without the key as a column, and without reasons of quarantine."""
    return replace(
        silver,
        changes=[plain_change(row) for row in silver.changes],
        rows={
            session: {name: without(row, "id") for name, row in rows.items()} for session, rows in silver.rows.items()
        },
        quarantine=[without(row, "reason", "session_id") for row in silver.quarantine],
    )


def plain_change(row: dict[str, Any]) -> dict[str, Any]:
    return without(row, "id") | {"_set": [name for name in row["_set"] if name != "id"]}


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def agreed(messages: Iterable[KafkaMessage], own: CaptureSettings) -> list[KafkaMessage]:
    found = []
    for message in messages:
        first, second = verdicts(message, own)
        if (first == "ok") == (second == "ok"):
            assert second in REASONS.get(first, {first})
            found.append(message)
        else:
            assert first in LENIENT or (first, second) == ("ok", "bad_path")
    return found


@pytest.mark.parametrize(("seed", "integrity", "policy"), every(range(STREAMS), CASES, 50))
def test_own_form_as_a_feed_gives_the_same_tables(seed: int, integrity: str, policy: str) -> None:
    rnd, messages = stream(seed)
    own, length = capture(integrity, policy, seed), interval(seed)
    messages = agreed(messages, own)
    by_decoder, by_feed = (
        fold(cut(rnd, messages, rnd.randint(1, 5)), rules, shards=rnd.randint(1, 4), rnd=rnd, interval=length)
        for rules in (own, as_feed(own))
    )
    assert_same(of_silver(comparable(by_feed)), of_silver(comparable(by_decoder)))


def test_these_streams_have_every_reason() -> None:
    own, missing = capture("strict", "record", 0), {*REASONS}
    for seed in range(STREAMS):
        missing -= {verdicts(message, own)[0] for message in stream(seed)[1]}
        if not missing:
            break
    assert not missing
