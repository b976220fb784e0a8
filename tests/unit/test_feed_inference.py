"""`feed infer` proposes valid feeds that read the messages they were made from, whatever form these have."""

from __future__ import annotations

import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.cli.feed_inference import propose_configuration
from sessionlake.errors import UsageError
from sessionlake.feeds.inference.types import find_unit_of_epoch_time, infer_column_type
from sessionlake.feeds.inference.yaml_text import format_yaml_in_one_line
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.settings.model import load_settings
from support import inferred
from support.inferred import records
from support.seeds import seeds


def proposal(given: list[KafkaRecord]) -> tuple[dict[str, Any], list[str]]:
    """The proposed feed, and the comments at the head of the file."""
    text = propose_configuration(given, "t", "t.jsonl", "sessionlake feed try t.jsonl")
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("#")]
    [feed] = yaml.safe_load(text)["capture"]["feeds"]
    return feed, comments


def rules(feed: dict[str, Any]) -> list[tuple[Any, str]]:
    return [(rule.get("when"), rule["is"]) for rule in feed["messages"]]


def test_a_book_with_links_is_read_with_its_order_and_snapshots_that_have_no_link():
    feed, comments = proposal(records(inferred.linked_book()))
    assert comments[:2] == [
        "Proposed from 40 messages of t.jsonl: 40 read, 0 ignored, 0 refused.",
        "Tables: sessions 2, rows 4, gaps 0, duplicates 0.",
    ]
    assert feed["session"] == "params.data.instrument_name"
    assert feed["key"] == ["side", "price"]
    assert feed["columns"] == {"side": "string", "price": "decimal(20,10)", "qty": "decimal(20,10)"}
    assert feed["time"] == {"path": "params.data.timestamp"}
    assert feed["order"] == {"seq": "params.data.change_id", "after": "params.data.prev_change_id"}
    snapshot, update = feed["messages"]
    assert (snapshot["when"], snapshot["is"]) == ({"params.data.type": "snapshot"}, "snapshot")
    assert (snapshot["restart"], snapshot["order"]) == (True, {"seq": "params.data.change_id"})
    assert update["rows"][0] == {
        "each": "params.data.bids[*]",
        "row": {"side": "=bid", "price": ".[1]", "qty": ".[2]"},
        "delete": {"qty": 0},
    }


def test_a_book_in_an_array_of_one_object_is_read_there():
    feed, comments = proposal(records(inferred.wrapped_book()))
    assert comments[0].endswith("40 read, 1 ignored, 0 refused.")
    assert feed["session"] == "arg.instId"
    assert feed["time"] == {"path": "data[0].ts", "from": "text"}
    assert feed["order"] == {"seq": "data[0].seqId", "after": "data[0].prevSeqId"}
    assert rules(feed) == [
        ({"action": "snapshot"}, "snapshot"), ({"action": "update"}, "update"), ({"action": "absent"}, "ignore"),
    ]  # fmt: skip


def test_actions_decide_whether_rows_are_deleted():
    feed, comments = proposal(records(inferred.rows_by_action()))
    assert comments[0].endswith("25 read, 0 ignored, 0 refused.")
    assert feed["key"] == ["id"]
    assert [rule["rows"] for rule in feed["messages"]] == [
        [{"each": "data[*]", "row": "all"}],
        [{"each": "data[*]", "row": "all"}],
        [{"each": "data[*]", "row": "all"}],
        [{"each": "data[*]", "row": "key", "delete": True}],
    ]


def test_a_number_that_rises_over_all_messages_is_a_chain():
    feed, comments = proposal(records(inferred.chained_book()))
    assert comments[0].endswith("36 read, 4 ignored, 0 refused.")
    assert feed["order"] == {"seq": "sequence_num", "chain": "kafka.topic"}
    assert feed["key"] == ["side", "price_level"]
    assert feed["time"] == {"path": "timestamp", "from": "iso"}


def test_captured_changes_are_one_table_for_each_partition():
    feed, comments = proposal(inferred.captured_changes())
    assert comments[:2] == [
        "Proposed from 5 messages of t.jsonl: 4 read, 1 ignored, 0 refused.",
        "Tables: sessions 1, rows 1, gaps 0, duplicates 0.",
    ]
    assert (feed["topics"], feed["uses"]) == (r"shop\.public\.orders", "debezium")
    assert feed["key"] == ["id"]
    assert feed["columns"]["changed"] == {"type": "timestamp", "from": "epoch_us"}
    assert feed["columns"]["total"] == {"type": "decimal(14,4)", "from": "text"}


def test_readings_are_rows_of_their_device():
    feed, comments = proposal(records(inferred.readings()))
    assert comments[1] == "Tables: sessions 4, rows 8, gaps 0, duplicates 0."
    assert (feed["session"], feed["key"], feed["time"]) == ("device_id", ["metric"], {"path": "ts"})
    assert feed["columns"] == {
        "device_id": "string", "metric": "string", "value": "double", "ok": "boolean",
        "ts": {"type": "timestamp", "from": "epoch_ms"}, "loc_lat": "double", "loc_lon": "double",
        "tags": "array<string>",
    }  # fmt: skip
    assert "order" not in feed


def test_points_in_an_array_are_rows_in_the_order_of_their_seq():
    feed, comments = proposal(records(inferred.points()))
    assert comments[1] == "Tables: sessions 1, rows 3, gaps 0, duplicates 0."
    assert (feed["session"], feed["key"], feed["order"]) == ("plant", ["id"], {"seq": "seq"})
    assert feed["time"] == {"path": "ts", "unit": "s"}
    assert rules(feed) == [({"type": "snapshot"}, "snapshot"), ({"type": "update"}, "update")]


def test_a_message_whose_kafka_key_is_its_id_is_a_row_that_a_tombstone_deletes():
    feed, comments = proposal(inferred.upserts())
    assert comments[0].endswith("40 read, 0 ignored, 0 refused.")
    assert (feed["key"], feed["columns"]["lines"]) == (["order_id"], "variant")
    assert (feed["uses"], "key_format" in feed) == ("upsert", False)


def test_a_kafka_key_that_is_a_number_is_read_as_json():
    given = records([{"id": 7, "total": 1}, {"id": 8, "total": 2}, None], keys=[b"7", b"8", b"7"])
    feed, comments = proposal(given)
    assert (feed["uses"], feed["key_format"], feed["key"]) == ("upsert", "json", ["id"])
    assert comments[1] == "Tables: sessions 1, rows 1, gaps 0, duplicates 0."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "t.jsonl has no messages"),
        (records([1, "x", None]), "no rows were found in 3 messages, of which 0 are JSON objects or arrays"),
        ([KafkaRecord("t", 0, 0, 0, None, b"\xff")], "no rows were found in 1 messages"),
        ([KafkaRecord("t", 0, 0, 0, None, b"[" * 100_000)], "no rows were found in 1 messages"),
    ],
)
def test_messages_without_rows_are_a_usage_error(given, said):
    with pytest.raises(UsageError, match=said):
        proposal(given)


@pytest.mark.parametrize("seed", seeds(40, 2000))
def test_whatever_the_messages_are_the_proposal_is_a_valid_configuration(seed, tmp_path):
    given = inferred.random_records(random.Random(seed))
    try:
        text = propose_configuration(given, "t", "t.jsonl", "again")
    except UsageError:
        return
    assert "\x1b" not in text
    (tmp_path / "sessionlake.yml").write_text(text, encoding="utf-8")
    [feed] = load_settings(tmp_path / "sessionlake.yml").capture.feeds
    assert feed.name == "t"


@pytest.mark.parametrize(
    ("name", "values", "setting"),
    [
        ("n", [1, 2], "bigint"),
        ("n", [2**63], "decimal(38,0)"),
        ("ts", [1_700_000_000], {"type": "timestamp", "from": "epoch_s"}),
        ("ts", [1_700_000_000_000], {"type": "timestamp", "from": "epoch_ms"}),
        ("at", [1_700_000_000_000_000], {"type": "timestamp", "from": "epoch_us"}),
        ("time", [1_700_000_000_000_000_000], {"type": "timestamp", "from": "epoch_ns"}),
        ("ts", [17, 1_700_000_000], "bigint"),
        ("temperature", [Decimal("21.5")], "double"),
        ("price", [Decimal("21.5"), 3], "decimal(14,4)"),
        ("price", [Decimal("1e300")], "double"),
        ("price", ["21.50"], {"type": "decimal(14,4)", "from": "text"}),
        ("zip", ["80331"], "string"),
        ("code", ["007"], "string"),
        ("x", ["a", None], "string"),
        ("x", [None], "string"),
        ("x", ["2026-01-31"], "date"),
        ("x", ["2026-01-31T12:00:00Z"], "timestamp"),
        ("x", ["2026-01-31T12:00:00"], "timestamp_ntz"),
        ("x", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00"], "string"),
        ("x", [True], "boolean"),
        ("x", [True, 1], "variant"),
        ("x", [{"a": 1}], "variant"),
        ("x", [[1], [2]], "array<bigint>"),
        ("x", [[{}]], "variant"),
    ],
)
def test_the_type_of_a_column_is_that_of_its_values(name, values, setting):
    assert infer_column_type(name, values).column_setting == setting


def test_a_time_has_the_unit_in_which_it_is_in_this_century():
    assert [find_unit_of_epoch_time(1_700_000_000 * factor) for factor in (1, 10**3, 10**6, 10**9, 10**12)] == [
        "s", "ms", "us", "ns", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "a", "a.b", "=bid", "=", "=1", "yes", "on", "y", "n", "null", "1", "1e3", "-1", ".5", ".[0]", ".inf", "0x1F",
        "0o7", "1:30", "1_000", "2026-01-31", "a: b", "# c", "", " ", "é", "\u2028", "[1]", "{a}", "'", '"', "a b",
        "decimal(20,10)", "%a", "@a", "`", "!a", "&a", "*a", "|", ">", "~", "x\ny", None, True, 0, 1.5, ["a", ["on"]],
        {"on": {"y": [1]}, "a b": None},
    ],
)  # fmt: skip
def test_a_value_in_one_line_is_read_back_as_it_was(value):
    assert yaml.safe_load(f"x: {format_yaml_in_one_line(value)}") == {"x": value}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SESSIONLAKE_HOME", str(tmp_path / "home"))
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["feed", *words])


def test_the_proposal_of_a_file_can_be_tried_at_once(folder):
    lines = [json.dumps({"topic": "plants", "value": value}) for value in inferred.points()]
    (folder / "points.jsonl").write_text("\n".join(lines))
    proposed = call("infer", "points.jsonl")
    assert (proposed.exit_code, proposed.stderr) == (0, "")
    (folder / "sessionlake.yml").write_text(proposed.stdout)
    tried = call("try", "points.jsonl", "--show", "none")
    assert tried.exit_code == 0
    assert tried.stdout.startswith("10 messages: 10 read, 0 ignored, 0 refused\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("nowhere.jsonl", 2, "nowhere.jsonl cannot be read"),
        ("some/folder", 2, "cannot be read"),
        ("topic.of.none", 1, "no Kafka broker answers"),
    ],
)
def test_a_source_that_is_not_there_is_named(source, code, said, free_port, monkeypatch):
    monkeypatch.setenv("SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port}")
    result = call("infer", source)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


RECORDINGS = os.environ.get("SESSIONLAKE_RECORDINGS")


@pytest.mark.skipif(RECORDINGS is None, reason="SESSIONLAKE_RECORDINGS names no folder")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "counts", "tables", "session", "order"),
    [
        ("KRAKEN.ws.50.0", "4,279 read, 42 ignored, 0 refused",
         "sessions 10, rows 7,452, gaps 0, duplicates 0. Checksums: right 4,269, wrong 0", "[-1]", None),
        ("COINBASE.ws.28.0", "9,729 read, 217 ignored, 0 refused", "sessions 10, rows 8,359, gaps 0", "product_id",
         None),
        ("HITBTC.ws.1.0", "537 read, 263 ignored, 0 refused", "sessions 10, rows 3,774, gaps 0", "params.symbol",
         {"seq": "params.sequence"}),
        ("BINANCE.ws.1.0", "177 read, 88 ignored, 0 refused", "sessions 4, rows 78, gaps 0", "data.s",
         {"seq": "data.u", "first": "data.U"}),
    ],
)  # fmt: skip
def test_the_proposal_for_a_recording_reads_all_of_it(name, counts, tables, session, order):
    result = call("infer", str(Path(RECORDINGS or "") / name))
    [feed] = yaml.safe_load(result.stdout)["capture"]["feeds"]
    assert counts in result.stdout
    assert tables in result.stdout
    assert (feed["session"], feed.get("order")) == (session, order)


def test_an_action_and_a_channel_together_name_a_kind():
    feed, comments = proposal(records(inferred.channels()))
    assert comments[1] == "Tables: sessions 3, rows 6, gaps 0, duplicates 0."
    assert feed["session"] == "arg.instId"
    assert rules(feed)[:2] == [
        ({"action": "snapshot", "arg.channel": "books"}, "snapshot"),
        ({"action": "update", "arg.channel": "books"}, "update"),
    ]
    assert {part["each"] for part in feed["messages"][1]["rows"]} == {"data[0].asks[*]", "data[0].bids[*]"}
    assert all(kind == "ignore" for _, kind in rules(feed)[2:])


@pytest.mark.parametrize(
    ("form", "rows", "crc32"),
    [
        ("mixed", 5, {"groups": ["bid", "ask"], "separator": ":", "interleaved": True}),
        ("digits", 5, {"groups": ["ask", "bid"], "digits_only": True}),
    ],
)
def test_a_checksum_is_proposed_with_the_form_that_fits_all_messages(form, rows, crc32):
    feed, comments = proposal(records(inferred.checked_book(form)))
    assert feed["keep"] == {"per": ["side"], "best": "price", "descending": ["bid"], "rows": 1000}
    found = crc32 | {"columns": ["price_text", "qty_text"]}
    assert feed["check"] == {"checksum": "checksum", "rows": rows, "crc32": found}
    assert comments[1].endswith("Checksums: right 40, wrong 0.")


def test_a_checksum_of_an_unknown_form_is_a_note():
    values = inferred.checked_book()
    feed, comments = proposal(records([value | {"checksum": value["checksum"] ^ 1} for value in values]))
    assert "check" not in feed
    assert any("Checksum may be a checksum, of none of the usual forms" in comment for comment in comments)


def test_a_checksum_that_no_rows_were_compared_with_is_a_note():
    values = [
        message
        for value in inferred.checked_book()
        for message in (
            {name: own for name, own in value.items() if name != "checksum"},
            {"type": "status", "symbol": value["symbol"], "checksum": value["checksum"]},
        )
    ]
    feed, comments = proposal(records(values))
    assert rules(feed)[-1] == ({"type": "status"}, "ignore")
    assert "check" not in feed
    assert any("Checksum may be a checksum, but only 0 of them are in messages" in comment for comment in comments)


def test_messages_that_are_one_level_each_belong_to_the_book_of_the_snapshots():
    feed, comments = proposal(records(inferred.book_of_rows()))
    assert comments[1] == "Tables: sessions 2, rows 4, gaps 0, duplicates 0."
    assert (feed["session"], feed["order"]) == ("product_id", {"seq": "seq"})
    assert rules(feed)[:2] == [({"feed": "book", "event": "absent"}, "update"), ({"feed": "book_snapshot"}, "snapshot")]
    assert feed["messages"][0]["rows"] == [
        {"row": {"side": "side", "price": "price", "qty": "qty"}, "delete": {"qty": 0}}
    ]
    assert {part["row"]["side"] for part in feed["messages"][1]["rows"]} == {"=buy", "=sell"}


def test_rows_in_an_array_with_the_name_delete_are_deleted():
    feed, _ = proposal(records(inferred.named_rows()))
    assert feed["session"] == "topic"
    delta = next(rule for rule in feed["messages"] if rule["is"] == "update")
    assert {part["each"]: part.get("delete") for part in delta["rows"]} == {
        "data.delete[*]": True,
        "data.update[*]": None,
        "data.insert[*]": None,
    }
