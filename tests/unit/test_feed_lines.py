"""Each form of a line becomes the message that it stands for; a hostile line becomes a message that is refused."""

from __future__ import annotations

import io
import json

import pytest

from sessionlake.feeds.events import MessageRefusal
from sessionlake.feeds.lines import parse_message_lines, read_lines
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.protocol.reasons import Reason
from support.feed_cases import BOOK, feed


def only(text: bytes) -> tuple[KafkaRecord, bool]:
    [line] = parse_message_lines([text], "t")
    return line.record, line.is_bare


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"topic": "u", "value": {"a":1.10,"a":2}}', b'{"a":1.10,"a":2}'),
        (b'{"topic": "u", "value": "{\\"a\\": 1}"}', b'{"a": 1}'),
        (b'{"topic": "u", "value": "no JSON"}', b"no JSON"),
        (b'{"topic": "u", "value": null}', None),
        (b'{"topic": "u", "value": [1]}', b"[1]"),
    ],
)
def test_a_line_with_a_topic_has_the_value_as_it_was_sent(line, value):
    record, is_bare = only(line)
    assert (record.topic, record.value, is_bare) == ("u", value, False)


def test_a_line_may_give_all_of_kafka_s_fields():
    given = {"topic": "u", "key": {"id": 1}, "value": 1, "headers": {"h": "x", "n": None}, "timestamp": 5}
    record, _ = only(json.dumps(given | {"partition": 2, "offset": 9}).encode())
    assert record == KafkaRecord("u", 2, 9, 5, b'{"id": 1}', b"1", {"h": b"x", "n": None})


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": 21.5, "timestamp": 1}',
        b'{"topic": "a/b", "value": 21.5, "unit": "C"}',
        b'{"topic": 1, "value": 21.5}',
        b"[1, 2]",
        b"\xff\xfe",
        b"{",
    ],
)
def test_any_other_line_is_the_value_of_a_message(line):
    record, is_bare = only(line)
    assert (record.topic, record.value, record.timestamp, is_bare) == ("t", line, -1, True)


def test_a_recording_gives_frames_with_their_times_and_skips_what_the_client_did():
    lines = [
        b"wss://ws.example.com <-> 1618678132.38\n",
        b'wss://ws.example.com <- 1618678132.8: {"event":"subscribe"}\n',
        b'1618678132.927716: {"a": 1}\r\n',
        b"\n",
        b"1618678133: [2]\n",
    ]
    found = [(line.number, line.record.offset, line.record.timestamp, line.record.value)
             for line in parse_message_lines(lines, "t")]  # fmt: skip
    assert found == [(3, 0, 1618678132927, b'{"a": 1}'), (5, 1, 1618678133000, b"[2]")]


def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_read():
    file = io.BytesIO(b"x" * 25 + b"\n" + b"y" * 10 + b"\nz")
    assert [*read_lines(file, 10)] == [b"x" * 10, b"y" * 10, b"z"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"topic": "feed.book.a", "value": {"s": "' + b"x" * (10 * 1024 * 1024) + b'"}}', Reason.TOO_LARGE),
        (b'{"s": "' + b"x" * (10 * 1024 * 1024) + b'"}', Reason.TOO_LARGE),
        (b'{"topic": "feed.book.a", "value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", Reason.TOO_DEEP),
        (b"[" * 100_000, Reason.TOO_DEEP),
        (b'{"s": "\xff"}', Reason.NOT_UTF8),
        (b'{"topic": "feed.book.a", "value": {"s": "\xff"}}', Reason.NOT_UTF8),
        (b'{"s": NaN}', Reason.NOT_JSON),
        (b'{"topic": "feed.book.a", "value": {"s": 1e99999}}', Reason.NO_RULE),
        (b'"\\ud800"', Reason.NOT_JSON),
    ],
)
def test_hostile_lines_are_refused_with_their_reason(line, reason):
    found = read_record(feed(BOOK), only(line)[0])
    assert isinstance(found, MessageRefusal)
    assert found.reason is reason


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"1618678132.9: b'{\"a\": \\'x\\'}'", b"{\"a\": 'x'}"),
        (b'1618678132.9: b"\\x1f\\x8b"', b"\x1f\x8b"),
        (b"1618678132.9: b'no end", b"b'no end"),
        (b"1618678132.9: b'1' + b'2'", b"b'1' + b'2'"),
    ],
)
def test_a_recorded_value_may_be_written_as_python_shows_bytes(line, value):
    assert only(line)[0].value == value
