"""Reading local tables without Spark: conditions and the ledger's offset ranges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER
from sessionlake.delta.storage.reading import is_in, is_null, starts_with
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.ledger.progress import (
    LayerReadOffsets,
    find_ledger_entry_of_message,
    read_last_offsets,
    read_layer_offsets,
)
from sessionlake.settings.model import Settings
from support.lakes import find_table_folder

NUMBERS = [(name, pa.int64()) for name in ("first", "last", "messages")]
OFFSETS = pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32()), *NUMBERS]))
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("layer", pa.string()),
        ("app_id", pa.string()),
        ("batch_id", pa.int64()),
        ("committed_at", TIME),
        ("offsets", OFFSETS),
        ("at", TIME),
    ]
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def entry(layer: str, batch: int, *ranges: tuple[str, int, int, int], app: str = "query") -> dict[str, Any]:
    names = ("topic", "partition", "first", "last", "messages")
    offsets = [dict(zip(names, (*span, span[3] - span[2] + 1), strict=True)) for span in ranges]
    return {
        "layer": layer,
        "app_id": app,
        "batch_id": batch,
        "committed_at": NOON + timedelta(seconds=batch),
        "offsets": offsets,
        "at": NOON,
    }


FILES = [
    [entry("bronze", 0, ("a", 0, 5, 9), ("b", 0, 0, 3)), entry("gold", 0)],
    [entry("silver", 0, ("a", 0, 5, 9)), entry("bronze", 1, ("a", 1, 0, 0), ("a", 0, 12, 20))],
    [entry("bronze", 2, ("b", 0, 4, 4))],
]


@pytest.fixture
def lake(settings: Settings) -> Lake:
    found = Lake(settings)
    for rows in FILES:
        write_deltalake(find_table_folder(found, LEDGER), pa.Table.from_pylist(rows, SCHEMA), mode="append")
    return found


@pytest.mark.parametrize(
    ("place", "batch"),
    [
        (("a", 0, 4), None),
        (("a", 0, 5), 0),
        (("a", 0, 9), 0),
        (("a", 0, 10), None),
        (("a", 0, 12), 1),
        (("a", 1, 0), 1),
        (("b", 0, 4), 2),
        (("c", 0, 0), None),
    ],
)
def test_a_batch_covers_its_ranges_first_and_last_offset_and_no_other(lake, place, batch):
    found = find_ledger_entry_of_message(lake.reader(), "bronze", *place)
    assert (found and found["batch_id"]) == batch


def test_a_span_reaches_over_all_batches_of_a_layer(lake):
    assert read_layer_offsets(lake.reader()) == [
        LayerReadOffsets("bronze", "a", 0, 5, 20, 14),
        LayerReadOffsets("bronze", "a", 1, 0, 0, 1),
        LayerReadOffsets("bronze", "b", 0, 0, 4, 5),
        LayerReadOffsets("silver", "a", 0, 5, 9, 5),
    ]


def test_what_a_layer_had_taken_in_before_it_was_rebuilt_does_not_count(lake):
    rows = [entry("silver", 1, ("a", 0, 5, 6), app="rebuild:1"), entry("silver", 2, ("a", 0, 7, 7))]
    write_deltalake(find_table_folder(lake, LEDGER), pa.Table.from_pylist(rows, SCHEMA), mode="append")
    reader = lake.reader()
    assert [span for span in read_layer_offsets(reader) if span.layer == "silver"] == [
        LayerReadOffsets("silver", "a", 0, 5, 7, 3)
    ]
    for near in (None, NOON, NOON + timedelta(days=2)):
        assert find_ledger_entry_of_message(reader, "silver", "a", 0, 5, near)["batch_id"] == 1
    assert find_ledger_entry_of_message(reader, "silver", "a", 0, 9) is None


@pytest.mark.parametrize(
    ("layer", "before", "expected"),
    [
        ("bronze", None, {("a", 0): 20, ("a", 1): 0, ("b", 0): 4}),
        ("bronze", Txn("query", 2), {("a", 0): 20, ("a", 1): 0, ("b", 0): 3}),
        ("bronze", Txn("query", 0), {}),
        ("bronze", Txn("another", 0), {("a", 0): 20, ("a", 1): 0, ("b", 0): 4}),
        ("silver", None, {("a", 0): 9}),
        ("gold", None, {}),
    ],
)
def test_a_layer_ends_where_its_batches_before_a_repeated_one_do(lake, layer, before, expected):
    assert read_last_offsets(lake.reader(), layer, before) == expected


@pytest.mark.parametrize(
    ("conditions", "batches"),
    [
        ([], [0, 0, 0, 1, 2]),
        ([("layer", eq, "bronze")], [0, 1, 2]),
        ([("layer", eq, "bronze"), ("batch_id", ge, 1)], [1, 2]),
        ([("batch_id", le, 1), ("batch_id", ge, 1)], [1]),
        ([("at", ge, NOON), ("batch_id", eq, 2)], [2]),
        ([("layer", eq, "' OR true --")], []),
    ],
)
def test_rows_are_those_that_meet_every_condition(lake, conditions, batches):
    assert sorted(row["batch_id"] for row in lake.reader().read_rows(LEDGER, *conditions)) == batches


def test_columns_are_those_asked_for_and_times_are_in_utc(lake):
    rows = list(lake.reader().read_rows(LEDGER, ("batch_id", eq, 2), columns=["at"]))
    assert rows == [{"at": NOON}]
    assert rows[0]["at"].utcoffset().total_seconds() == 0


def test_a_table_that_is_not_there_has_no_rows_and_an_absent_ledger_no_spans(settings):
    reader = Lake(settings).reader()
    assert (
        list(reader.read_rows(LEDGER)),
        read_layer_offsets(reader),
        find_ledger_entry_of_message(reader, "bronze", "a", 0, 0),
    ) == ([], [], None)


def test_a_damaged_table_is_reported_by_its_name(lake):
    for file in (find_table_folder(lake, LEDGER) / "_delta_log").glob("*.json"):
        file.write_text("{")
    with pytest.raises(LakeError, match=r"ops\.ledger cannot be read without Spark, by delta-rs"):
        read_layer_offsets(lake.reader())


def test_a_catalog_s_tables_need_a_session():
    with pytest.raises(LakeError, match="catalog main"):
        Lake(Settings(catalog="main")).reader()


def test_files_are_opened_without_python_which_a_process_that_ends_would_not_survive(lake, monkeypatch):
    """Arrow's threads may still hold a file when Python is gone: with delta-rs' file system, that often aborts."""
    opened: list[str] = []
    monkeypatch.setattr("deltalake.fs.DeltaStorageHandler.open_input_file", lambda _, path: opened.append(path))
    assert len(list(lake.reader().read_rows(LEDGER))) == 5
    assert opened == []


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        (("batch_id", eq, 2), 1),
        (("batch_id", ge, 1), 2),
        (("batch_id", le, 0), 2),
        (("batch_id", lt, 0), 0),
        (("batch_id", gt, 2), 0),
        (("batch_id", gt, 1), 1),
        (("batch_id", is_in, [2, 3]), 1),
        (("batch_id", is_in, []), 0),
        (("committed_at", ge, NOON + timedelta(seconds=2)), 1),
        (("layer", starts_with, "x"), 3),
        (("layer", is_null, None), 0),
    ],
)
def test_files_are_left_out_by_what_their_statistics_say(lake: Lake, condition: Any, read: int) -> None:
    found = lake.reader().find_files_to_read(LEDGER, condition)
    assert found is not None
    assert (len(found.read), found.total) == (read, len(FILES))


@pytest.mark.parametrize("condition", [None, ("layer", eq, "bronze"), ("batch_id", ge, 1)])
def test_columns_by_which_a_table_is_partitioned_are_read_as_others_are(settings: Settings, condition: Any) -> None:
    """Their values are in the log, and not in the files."""
    lake, rows = Lake(settings), [row for file in FILES for row in file]
    table = pa.Table.from_pylist(rows, SCHEMA).drop_columns("offsets")
    write_deltalake(find_table_folder(lake, LEDGER), table, partition_by=["layer"])
    conditions = [] if condition is None else [condition]
    found = lake.reader().read_rows(LEDGER, *conditions, columns=["layer", "batch_id"])
    told = [(row["layer"], row["batch_id"]) for row in rows]
    meets = [one for one in told if condition is None or condition[1](one[condition[0] == "batch_id"], condition[2])]
    assert sorted((row["layer"], row["batch_id"]) for row in found) == sorted(meets)
    assert lake.reader().count_rows(LEDGER) == len(rows)
