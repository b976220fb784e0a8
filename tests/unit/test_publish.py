"""A table's rows as messages, and what is refused before anything starts."""

from __future__ import annotations

import itertools
import json
import math
import struct
from base64 import b64decode
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES, METRICS_1D, METRICS_1H, METRICS_1M, SENSOR_AVERAGES
from sessionlake.delta.schemas.names import ROWS as ROWS_TABLE
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.tables.table_properties import set_change_feeds
from sessionlake.protocol.upserts import CHANGE, SCHEMA, VERSION, UpsertMessageEncoder
from sessionlake.publish.job import Publication, require_change_feed
from sessionlake.publish.publishable import list_publishable_tables
from sessionlake.settings.model import GoldSettings, KafkaSettings, Settings
from support.lakes import find_table_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIERS, AVERAGE_TABLES = {METRICS_1M, METRICS_1H, METRICS_1D}, {AVERAGES, SENSOR_AVERAGES}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# The first row of all waits for Arrow to be loaded.
UNHURRIED = settings(deadline=None)
ROWS = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("int", pa.int64()),
        ("tiny", pa.int8()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("bytes", pa.binary()),
        (CHANGE, pa.string()),
        (VERSION, pa.int64()),
    ]
)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.fixed_dictionaries(
    {
        "double": st.none() | st.floats(),
        "float": st.none() | st.floats(width=32),
        "int": st.none() | INT64,
        "tiny": st.none() | st.integers(-128, 127),
        "flag": st.none() | st.booleans(),
        "text": st.none() | TEXT,
        "time": st.none() | INT64,
        "day": st.none() | st.integers(-(2**31), 2**31 - 1),
        "bytes": st.none() | st.binary(max_size=20),
    }
)


def row(key: str = "r", number: int = 0, version: int = 1, change: str = "insert", **values: Any) -> dict[str, Any]:
    none = dict.fromkeys(("double", "float", "int", "tiny", "flag", "text", "time", "day", "bytes"))
    return {"k": key, "n": number, **none, **values, CHANGE: change, VERSION: version}


def encoded(*batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    given = [pa.RecordBatch.from_pylist(batch, schema=ROWS) for batch in batches]
    made = list(UpsertMessageEncoder(("k", "n"), batch=7)(given))
    assert all(batch.schema == SCHEMA for batch in made)
    return [message for batch in made for message in batch.to_pylist()]


def bits(value: Any) -> Any:
    """A floating-point value, as a number or spelled out, by its bits; any NaN is one."""
    if value is None:
        return None
    return "nan" if math.isnan(float(value)) else struct.pack("d", float(value))


@UNHURRIED
@given(TEXT, INT64, VALUES)
def test_a_row_can_be_read_back_exactly_by_a_reader_of_json(key, number, values):
    (message,) = encoded([row(key, number, **values)])
    assert json.loads(message["key"]) == {"k": key, "n": number}
    found = json.loads(message["value"])
    assert list(found) == [name for name in ROWS.names if name not in {CHANGE, VERSION}]
    assert [bits(found[name]) for name in ("double", "float")] == [bits(values[name]) for name in ("double", "float")]
    plain = ("int", "tiny", "flag", "text", "time", "day")
    assert {n: found[n] for n in plain} == {n: values[n] for n in plain}
    assert (None if found["bytes"] is None else b64decode(found["bytes"], validate=True)) == values["bytes"]


@UNHURRIED
@given(TEXT, INT64)
def test_a_key_is_spelled_in_the_one_way_that_is_laid_down(key, number):
    (message,) = encoded([row(key, number)])
    assert message["key"] == json.dumps({"k": key, "n": number}, ensure_ascii=False, separators=(",", ":")).encode()


def test_what_json_has_no_number_for_is_spelled_out():
    messages = encoded([row(number=i, double=float(text)) for i, text in enumerate(("nan", "inf", "-inf", "-0.0"))])
    assert [json.dumps(json.loads(m["value"])["double"]) for m in messages] == [
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
        "-0.0",
    ]


def test_decimals_and_arrays_are_spelled_exactly_and_times_without_zone_as_in_utc():
    types = {
        "small": pa.decimal128(38, 10), "shares": pa.list_(pa.decimal128(10, 2)), "local": pa.timestamp("us"),
        "blobs": pa.list_(pa.binary()), "grid": pa.list_(pa.list_(pa.int32())), "odd": pa.list_(pa.float64()),
    }  # fmt: skip
    values = {
        "small": Decimal("0.0000000001"), "shares": [Decimal("-1.50"), None], "blobs": [b"\xff", None, b""],
        "local": datetime.fromisoformat("1970-01-01T00:00:00.000001"), "grid": [[1, None], None, []], "odd": [math.nan],
    }  # fmt: skip
    names = [("k", pa.string()), *types.items(), (CHANGE, pa.string()), (VERSION, pa.int64())]
    rows = [{"k": key, CHANGE: "insert", VERSION: 1} | own for key, own in (("a", values), ("b", {}))]
    made = UpsertMessageEncoder(("k",), batch=7)([pa.RecordBatch.from_pylist(rows, schema=pa.schema(names))])
    found, empty = (json.loads(message["value"]) for batch in made for message in batch.to_pylist())
    assert found == {
        "k": "a", "small": "0.0000000001", "shares": ["-1.50", None], "local": 1, "blobs": ["/w==", None, ""],
        "grid": [[1, None], None, []], "odd": ["NaN"],
    }  # fmt: skip
    assert empty == {"k": "b"} | dict.fromkeys(types)


def test_a_delete_is_a_tombstone_and_every_message_names_version_and_batch():
    upsert, tombstone = encoded([row("a", version=3), row("a", version=4, change="delete")])
    assert (upsert["key"], upsert["value"] is None) == (tombstone["key"], False)
    assert tombstone["value"] is None
    assert [m["headers"][0] for m in (upsert, tombstone)] == [
        {"key": "sessionlake.version", "value": b"3"},
        {"key": "sessionlake.version", "value": b"4"},
    ]
    assert upsert["headers"][1] == {"key": "sessionlake.batch", "value": b"7"}


CHANGES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from("ab"), st.integers(0, 1), st.booleans()), unique=True, max_size=12
).map(sorted)


@UNHURRIED
@given(CHANGES, st.lists(st.integers(0, 12), max_size=4))
def test_a_version_gives_a_key_one_message_what_it_left_however_arrow_cuts_the_rows(changes, cuts):
    rows = [
        row(key, number, version, "update_postimage" if written else "delete")
        for version, key, number, written in changes
    ]
    places = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    messages = encoded(*(rows[start:end] for start, end in itertools.pairwise(places)))
    left = {(version, key, number): written for version, key, number, written in changes}
    assert [(m["version"], *json.loads(m["key"]).values(), m["value"] is not None) for m in messages] == [
        (*place, written) for place, written in left.items()
    ]


def test_large_rows_leave_in_chunks():
    batch = pa.RecordBatch.from_pylist([row(number=i, text="x" * (5 << 20)) for i in range(9)], schema=ROWS)
    sizes = [made.num_rows for made in UpsertMessageEncoder(("k", "n"), 0)([batch])]
    assert sum(sizes) == 9
    assert max(sizes) == 4


def test_a_type_without_a_spelling_is_refused_by_name():
    batch = pa.RecordBatch.from_pydict({"k": ["a"], "many": [{"x": 1}], CHANGE: ["insert"], VERSION: [1]})
    with pytest.raises(LakeError, match="column many is of type struct<x: int64>"):
        list(UpsertMessageEncoder(("k",), 0)([batch]))


def test_bytes_are_base64_with_padding():
    messages = encoded([row(number=i, bytes=raw) for i, raw in enumerate((b"", b"\x00", b"\xff\xfe?"))])
    assert [json.loads(message["value"])["bytes"] for message in messages] == ["", "AA==", "//4/"]


def gold(**changed: Any) -> Settings:
    own = {"name": "own", "keys": ["topic"], "aggregates": {"mean": "mean", "usual": "p50"}}
    return Settings(gold=GoldSettings.model_validate({"products": [own], **changed}))


def test_what_can_be_published_has_its_key_s_columns_and_all_of_gold_can():
    found = list_publishable_tables(gold())
    tables = {one.table_name: dict(one.column_types) for one in list_declared_gold_tables(gold())}
    assert found.keys() == {ROWS_TABLE, *tables}
    assert {"gold.own", "gold.distinct_values", *TIERS, *AVERAGE_TABLES} <= tables.keys()
    assert TABLES[ROWS_TABLE].change_feed
    columns = {ROWS_TABLE: {name for name, _ in TABLES[ROWS_TABLE].column_types}} | tables
    assert all({*outlet.key} <= {*columns[table]} for table, outlet in found.items())


def test_what_a_figure_is_kept_up_by_is_not_sent():
    own = next(one for one in list_declared_gold_tables(gold()) if one.table_name == "gold.own")
    names = [name for name, _ in own.column_types]
    assert "__sl_buckets" in names
    assert list_publishable_tables(gold())["gold.own"].list_columns_to_send(names) == ["topic", "mean", "usual"]
    assert list_publishable_tables(gold())[ROWS_TABLE].list_columns_to_send(["row_id", "_offset"]) == [
        "row_id",
        "_offset",
    ]


def test_a_feed_that_is_asked_for_is_of_a_table_that_gold_keeps_up():
    known = [one.name for one in list_declared_gold_tables(gold())]
    assert gold(change_feed=known).gold.change_feed == tuple(known)
    with pytest.raises(ValueError, match=r"gold has no table gold\.own; its tables are rolling_average, .*, own"):
        gold(change_feed=["gold.own"])


def test_a_table_of_gold_without_a_feed_names_the_setting_and_then_who_switches_it_on(tmp_path):
    out = Publication("gold.own", "out")
    with pytest.raises(UsageError, match=r"Set `gold: \{change_feed: \[metrics_1h, own\]\}`"):
        out.require_allowed_by_settings(gold(change_feed=["metrics_1h"]))
    ours = gold(change_feed=["own"]).model_copy(update={"home": tmp_path})
    out.require_allowed_by_settings(ours)
    lake, spark = Lake(ours), cast("SparkSession", None)  # which folders do not ask
    write_deltalake(find_table_folder(lake, "gold.own"), pa.table({"topic": ["a"]}))
    with pytest.raises(LakeError, match=r"gold.own records no changes yet .* Run `sessionlake run gold --once`"):
        require_change_feed(spark, lake, "gold.own")
    own = [one for one in list_declared_gold_tables(ours) if one.table_name == "gold.own"]
    set_change_feeds(spark, lake, ours, own)
    require_change_feed(spark, lake, "gold.own")
    version = lake.last_commit(spark, "gold.own").version
    set_change_feeds(spark, lake, ours, own)
    assert lake.last_commit(spark, "gold.own").version == version


@pytest.mark.parametrize(
    ("table", "topic", "text"),
    [
        (
            "silver.quarantine",
            "out",
            "'silver.quarantine' is not a table that can be published.*one of silver.session_rows",
        ),
        ("gold.session_summary", "out", r"gold.session_summary is a view"),
        ("gold.metrics_1m", "out", r"Set `gold: \{change_feed: \[metrics_1m\]\}`"),
        ("silver.session_rows", "capture.x", r"topic capture.x matches kafka.topic_pattern \(capture\\..\+\)"),
        ("silver.session_rows", "in valid", "'in valid' is not a valid name of a topic"),
        ("silver.session_rows", "..", "is not a valid name of a topic"),
        ("silver.session_rows", "x" * 201, "up to 200 letters"),
        ("silver.session_rows", "", "is not a valid name of a topic"),
    ],
)
def test_a_table_without_a_key_and_a_topic_that_cannot_serve_are_refused(table, topic, text):
    with pytest.raises(UsageError, match=text):
        Publication(table, topic).require_allowed_by_settings(Settings())


def test_a_pattern_refuses_whole_names_only():
    ours = Settings(kafka=KafkaSettings(topic_pattern="rows"))
    Publication("silver.session_rows", "rows.out").require_allowed_by_settings(ours)


def test_publishing_before_there_is_a_table_names_the_way_to_it(tmp_path):
    words = ["publish", "silver.session_rows", "--topic", "out", "--once"]
    result = CliRunner().invoke(cli.app, words, env={"SESSIONLAKE_HOME": str(tmp_path / "home")})
    assert result.exit_code == 1
    assert "sessionlake run all --once" in result.stderr
