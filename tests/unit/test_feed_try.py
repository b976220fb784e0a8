"""`feed try` shows each message's rule, events and rows, or why it is refused, and exits with 1 if one is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.kafka import last_messages
from support.feed_cases import BINANCE, BOOK, COINBASE, HITBTC, KRAKEN

SNAPSHOT = {"type": "snapshot", "s": "A", "t": 1_700_000_000_000, "u": 3, "pu": -1, "bids": [["1.50", "2"]], "asks": []}
CHANGE = {"type": "delta", "s": "A", "t": 1_700_000_000_001, "u": 4, "pu": 3, "bids": [["1.5", "0"]], "asks": []}
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    configure(BOOK)

    def run(*words: str, content: str | bytes | None = None) -> Result:
        if content is not None:
            Path("messages.jsonl").write_bytes(content.encode() if isinstance(content, str) else content)
        return CliRunner().invoke(cli.app, ["feed", *words], env={"SESSIONLAKE_HOME": str(tmp_path / "home")})

    return run


def configure(*feeds: str) -> None:
    content = {"capture": {"feeds": [yaml.safe_load(text) for text in feeds]}}
    Path("sessionlake.yml").write_text(yaml.safe_dump(content, sort_keys=False))


def lines(*values: Any, topic: str = "feed.book.a") -> str:
    return "".join(json.dumps({"topic": topic, "value": value}) + "\n" for value in values)


def test_a_message_is_shown_with_its_rule_event_and_rows(call):
    result = call("try", "messages.jsonl", content=lines(SNAPSHOT, CHANGE))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "line 1, topic feed.book.a: feed book, rule 1",
        "  snapshot of session A, seq 3 (after any), the order starts again, 2023-11-14 22:13:20.000Z",
        "    change  row_id       side  price         qty",
        '    upsert  ["bid",1.5]  bid   1.5000000000  2.0000000000',
        "line 2, topic feed.book.a: feed book, rule 2",
        "  update of session A, seq 4 (after 3), 2023-11-14 22:13:20.001Z",
        "    change  row_id",
        '    delete  ["bid",1.5]',
        "2 messages: 2 read, 0 ignored, 0 refused",
        "  feed book, rule 1 (snapshot): 1",
        "  feed book, rule 2 (update): 1",
        "  tables: sessions 1, rows 0",
        "  order: gaps 0, duplicates 0",
        "next: `sessionlake run all` reads the topic with this feed",
    ]


def test_a_refused_message_is_shown_with_reason_path_and_why(call):
    result = call("try", "messages.jsonl", content=lines(SNAPSHOT | {"bids": [["x", "2"]]}, {"type": "none"}))
    assert result.exit_code == 1
    assert "line 1, topic feed.book.a: refused by feed book: bad_value at .[0]" in result.stdout
    assert '  why      column price is decimal(20,10), found "x": it is no text of a number' in result.stdout
    assert '  message  {"type": "none"}' in result.stdout
    assert "next: correct the feed, then run `sessionlake feed try messages.jsonl --show refused`" in result.stdout


def test_only_refused_messages_or_none_are_shown_on_demand(call):
    content = lines(SNAPSHOT, {"type": "none"})
    refused = call("try", "messages.jsonl", "--show", "refused", content=content).stdout
    assert "line 1" not in refused
    assert "line 2" in refused
    assert call("try", "messages.jsonl", "--show", "none").stdout.startswith("2 messages: 1 read, 0 ignored, 1 refused")


def test_gaps_duplicates_and_updates_before_a_snapshot_are_counted(call):
    late = CHANGE | {"u": 9, "pu": 8}
    result = call("try", "messages.jsonl", content=lines(CHANGE, SNAPSHOT, late, late))
    assert result.exit_code == 0
    assert "  gap: messages are missing before this one" in result.stdout
    assert "  duplicate: its seq was already applied" in result.stdout
    assert "  order: gaps 1, duplicates 1" in result.stdout
    assert "  updates before the first snapshot of their session: 1;" in result.stdout


def test_json_has_one_object_a_message_and_a_summary(call):
    result = call(
        "try", "messages.jsonl", "--format", "json", content=lines(SNAPSHOT, {"type": "none"}, {"type": "info"})
    )
    first, second, third, last = map(json.loads, result.stdout.splitlines())
    assert first["events"][0]["rows"] == [
        {"change": "upsert", "row_id": '["bid",1.5]', "_rescued": None,
         "set": {"side": "bid", "price": "1.5000000000", "qty": "2.0000000000"}}
    ]  # fmt: skip
    assert (second["refused"]["reason"], third["events"]) == ("no_rule", [])
    assert (last["summary"]["messages"], last["summary"]["ignored"], last["summary"]["rows"]) == (3, 1, 1)


def test_bare_values_and_recordings_are_read_by_the_only_feed(call):
    content = f"wss://x <-> 1.5\n1700000000.5: {json.dumps(SNAPSHOT)}\n{json.dumps(CHANGE)}\n"
    assert "2 read" in call("try", "messages.jsonl", content=content).stdout
    assert "topic feed.book.x" in call("try", "messages.jsonl", "--topic", "feed.book.x").stdout


def test_bare_values_need_a_topic_or_a_feed_where_there_are_several(call):
    configure(BOOK, KRAKEN)
    result = call("try", "messages.jsonl", content=json.dumps(SNAPSHOT))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "line 1 of the messages names no topic" in result.stderr
    assert "1 read" in call("try", "messages.jsonl", "--topic", "feed.book.x").stdout
    assert "1 read" in call("try", "messages.jsonl", "--feed", "book").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl cannot be read: No such file or directory"),
        (["mesages.jsonl"], "Did you mean messages.jsonl?"),
        (["."], "cannot be read: Is a directory"),
        ([], "there are no messages to read"),
        (["messages.jsonl", "--feed", "bok"], "there is no feed 'bok'; configured are book. Did you mean --feed book?"),
        (["messages.jsonl", "--topic", "feed.bok"], "topic 'feed.bok' matches no feed; configured are book"),
        (["messages.jsonl", "--format", "csv"], "csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_is_a_usage_error_that_says_what_can(call, words, said):
    result = call("try", *words, content=lines(SNAPSHOT))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split()).replace("│ ", "")


def test_without_a_feed_the_way_to_one_is_named(call):
    Path("sessionlake.yml").write_text("capture: {integrity: strict}\n")
    result = call("try", "messages.jsonl", content="{}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no feed is configured" in result.stderr
    assert "sessionlake feed infer FILE > feed.yml" in result.stderr


def test_a_topic_that_no_feed_matches_is_counted_and_fails(call):
    result = call("try", "messages.jsonl", content=lines(SNAPSHOT, topic="other"))
    assert result.exit_code == 1
    assert "line 1, topic other: no feed matches this topic" in result.stdout
    assert "next: correct `topics` of the feed" in result.stdout


def test_a_check_that_cannot_be_imported_is_named(call):
    configure(KRAKEN.replace("sessionlake.feeds.kraken:checksum", "nowhere:check"))
    result = call("try", "messages.jsonl", content="{}")
    assert result.exit_code == 2
    assert "capture.feeds.kraken.check.with: module nowhere cannot be imported" in result.stderr


def test_the_last_messages_of_a_topic_are_read_from_kafka(call, monkeypatch):
    asked = []

    def read(_settings: object, topic: str, count: int) -> list[KafkaRecord]:
        asked.append((topic, count))
        return [KafkaRecord(topic, 3, 17, 5, None, json.dumps(SNAPSHOT).encode())]

    monkeypatch.setattr(last_messages, "read_last_messages", read)
    result = call("try", "--topic", "feed.book.b", "--last", "7")
    assert asked == [("feed.book.b", 7)]
    assert result.stdout.startswith("topic feed.book.b, partition 3, offset 17: feed book, rule 1\n")


def test_without_a_broker_the_way_to_one_is_named(call, free_port, monkeypatch):
    monkeypatch.setenv("SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port}")
    result = call("try", "--topic", "feed.book.b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no Kafka broker answers" in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b'{"s":"' + b"x" * 11_000_000 + b'"}', "too_large"), (b"\xff\x1b[2J", "not_utf8"), (b"[" * 300, "too_deep")],
)  # fmt: skip
def test_a_hostile_line_is_refused_and_reaches_no_terminal(call, content, reason):
    result = call("try", "messages.jsonl", content=content)
    assert result.exit_code == 1
    assert f"refused by feed book: {reason}" in result.stdout
    assert "\x1b" not in result.stdout
    assert len(result.stdout) < 2_000


def program(folder: Path, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sessionlake", "feed", *words]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, **options)


@pytest.mark.usefixtures("call")
def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path):
    (tmp_path / "messages.jsonl").write_text(lines(SNAPSHOT) * 20_000)
    running = program(tmp_path, "try", "messages.jsonl", stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, b"")


@pytest.mark.usefixtures("call")
def test_standard_input_is_read_as_it_comes_and_ctrl_c_ends_it(tmp_path):
    running = program(tmp_path, "try", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(lines(SNAPSHOT).encode() * 100)  # more than a buffer of output, less than a pipe holds
    running.stdin.flush()
    assert running.stdout.readline().startswith(b"line 1")
    running.send_signal(2)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, b"interrupted\n")


RECORDINGS = os.environ.get("SESSIONLAKE_RECORDINGS")


@pytest.mark.skipif(RECORDINGS is None, reason="SESSIONLAKE_RECORDINGS names no folder")
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "KRAKEN.ws.50.0",
            KRAKEN.replace('[kafka.headers.connection, "[-1]"]', '"[-1]"'),
            "checksums: right 4,269, wrong 0",
        ),
        ("COINBASE.ws.28.0", COINBASE, "9,946 messages: 9,729 read, 217 ignored, 0 refused"),
        ("HITBTC.ws.1.0", HITBTC, "800 messages: 537 read, 263 ignored, 0 refused"),
        ("BINANCE.ws.1.0", BINANCE, "265 messages: 177 read, 88 ignored, 0 refused"),
    ],
)
def test_recordings_are_read_without_a_refusal(call, name, text, said):
    configure(text)
    result = call("try", str(Path(RECORDINGS or "") / name), "--show", "none")
    assert (result.exit_code, said in result.stdout) == (0, True)
