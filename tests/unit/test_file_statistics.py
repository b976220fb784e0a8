"""Statistics of files: foreign readers decode them as they were meant, and no row lies beyond them."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import eq
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.delta.folders import compaction as tiers
from sessionlake.delta.folders.file_statistics import (
    FileStatistics,
    encode_log_json,
    parse_statistics,
    repair_unreadable_statistics,
)
from sessionlake.delta.folders.parquet import _move_spark_file_to_table
from sessionlake.delta.folders.reader import FolderReader
from sessionlake.delta.folders.table_files import list_data_files
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import APPEND_ONLY, DELETION_VECTORS, STATISTICS_COLUMNS
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.settings.model import Settings
from support.lakes import limit

TABLE = "gold.own"
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
UPSERT = Upsert(("key",), ("value",))
BEYOND = ["\U0010ffff", "\U00020bb7", "\U0001f600", "a\U000e0001"]
"""The last character there is, a Chinese one of a name, an emoji, and a tag."""
NO_SPARK: Any = None


def made(folder: Path, schema: pa.Schema = SCHEMA, indexed: str = "key", **properties: str) -> FolderStorage:
    lake = FolderStorage(Settings(home=folder))
    DeltaTable.create(lake.path(TABLE), schema, configuration={STATISTICS_COLUMNS: indexed, **properties})
    return lake


def rows(value: int, keys: list[str] = BEYOND) -> pa.Table:
    return pa.table({"key": keys, "value": [value] * len(keys)}, SCHEMA)


def merge_by_another(folder: Path) -> None:
    """Has delta-rs merge a new value of each key, one after the other: each is looked for by its own bounds."""
    before = pa.table(DeltaTable(folder).scan())["key"].to_pylist()
    for key in BEYOND:
        source = rows(7, [key])
        merge = DeltaTable(folder).merge(
            source, "t.key = s.key", source_alias="s", target_alias="t", streamed_exec=False
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    found = pa.table(DeltaTable(folder).scan()).to_pylist()
    assert sorted(row["key"] for row in found) == sorted(before), "what was there has been inserted once more"
    assert {row["key"] for row in found if row["value"] == 7} == {*BEYOND}


@pytest.mark.parametrize("put_together", [False, True])
@pytest.mark.parametrize("how", ["appended", "marked", "merged", "compacted"])
def test_another_writer_s_merge_finds_rows_whose_keys_are_beyond_the_first_planes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, put_together: bool
) -> None:
    monkeypatch.setattr(tiers, "_ENOUGH", (2, 2, 2))
    limit(monkeypatch, rewritten_rows=100 if how == "merged" else -1)
    lake = made(tmp_path)
    for number, key in enumerate(BEYOND):
        lake.append_rows(None, TABLE, rows(number, [key, key + "z"]), Txn("app", number))
    if how == "compacted":
        assert lake.compact_table(NO_SPARK, TABLE) is not None
    if how in ("marked", "merged"):
        for number, key in enumerate(BEYOND):
            lake.merge_rows(NO_SPARK, TABLE, rows(1, [key + "z"]), UPSERT, Txn("merge", number))
    if put_together:
        DeltaTable(lake.path(TABLE)).create_checkpoint()
    merge_by_another(lake.path(TABLE))


def written_by_an_earlier_version(lake: FolderStorage, *, bounds: Any = None) -> None:
    """Has all entries of the log as earlier versions wrote them."""
    for commit in (lake.path(TABLE) / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
        for add in (action["add"] for action in actions if "add" in action):
            statistics = parse_statistics(add["stats"])
            statistics |= {} if bounds is None else {"minValues": bounds, "maxValues": bounds}
            add["stats"] = json.dumps(statistics)
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")


@pytest.mark.parametrize("put_together", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_maintenance_corrects_the_statistics_of_entries_that_an_earlier_version_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool, put_together: bool
) -> None:
    limit(monkeypatch, rewritten_rows=-1)
    lake = made(tmp_path)
    for number, key in enumerate(BEYOND):
        lake.append_rows(None, TABLE, rows(number, [key, key + "z"]), Txn("app", number))
    if marked:
        lake.merge_rows(NO_SPARK, TABLE, rows(3), UPSERT, Txn("merge", 0))
    written_by_an_earlier_version(lake)
    if put_together:
        DeltaTable(lake.path(TABLE)).create_checkpoint()
    before = list_data_files(DeltaTable(lake.path(TABLE)))
    assert lake.compact_table(NO_SPARK, TABLE) is None
    delta = DeltaTable(lake.path(TABLE))
    after = list_data_files(delta)
    assert {file.log_key for file in after} == {file.log_key for file in before}, "no row is written anew"
    assert {file.add["modificationTime"] for file in after} == {file.add["modificationTime"] for file in before}
    assert [repair_unreadable_statistics(file.add["stats"], file.row_count) for file in after] == [None] * len(after)
    assert not lake.latest_commits(None, TABLE, 1)[0].changes_rows
    version = delta.version()
    lake.compact_table(NO_SPARK, TABLE)
    assert DeltaTable(lake.path(TABLE)).version() == version, "once"
    merge_by_another(lake.path(TABLE))


def test_entries_with_an_infinity_get_statistics_that_are_json(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.float64())])
    lake = made(tmp_path, schema)
    lake.append_rows(None, TABLE, pa.table({"key": [1.0]}, schema), Txn("app", 0))
    written_by_an_earlier_version(lake, bounds={"key": math.inf})
    lake.compact_table(NO_SPARK, TABLE)
    [file] = list_data_files(DeltaTable(lake.path(TABLE)))
    assert msgspec.json.decode(file.add["stats"]) == {"numRecords": 1}


@pytest.mark.parametrize("rows", [{}, {"numRecords": math.nan}, {"numRecords": None}])
@pytest.mark.parametrize("put_together", [False, True])
def test_entries_with_an_infinity_and_no_number_of_rows_get_that_of_the_file(
    tmp_path: Path, rows: dict[str, Any], put_together: bool
) -> None:
    schema = pa.schema([("key", pa.float64())])
    lake = made(tmp_path, schema)
    lake.append_rows(None, TABLE, pa.table({"key": [1.0, 2.0]}, schema), Txn("app", 0))
    commit = lake.path(TABLE) / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for add in (action["add"] for action in actions if "add" in action):
        add["stats"] = json.dumps(rows | {"minValues": {"key": -math.inf}, "maxValues": {"key": math.nan}})
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")
    if put_together:
        DeltaTable(lake.path(TABLE)).create_checkpoint()
    assert lake.compact_table(NO_SPARK, TABLE) is None
    [file] = list_data_files(DeltaTable(lake.path(TABLE)))
    assert msgspec.json.decode(file.add["stats"]) == {"numRecords": 2}
    version = DeltaTable(lake.path(TABLE)).version()
    lake.compact_table(NO_SPARK, TABLE)
    assert DeltaTable(lake.path(TABLE)).version() == version, "once"


@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_what_was_escaped_is_reported_unescaped_and_what_is_so_is_left_alone(value: Any) -> None:
    try:
        plain = encode_log_json({"numRecords": 1, "minValues": {"key": value}}).decode()
    except UnicodeEncodeError:  # half a character, which no text of a table has
        return
    assert repair_unreadable_statistics(plain, 1) is None
    escaped = json.dumps(json.loads(plain))
    statistics = repair_unreadable_statistics(escaped, 1)
    assert statistics is None or statistics == plain
    assert statistics is not None or not any(ord(character) > 0xFFFF for character in plain)


DAY = date(2026, 1, 2)
TENTH = pa.scalar(0.1, pa.float32()).as_py()
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
KINDS: dict[str, tuple[pa.DataType, list[Any], Any, Any]] = {
    "tinyint": (pa.int8(), [1, -2], -2, 1),
    "bigint": (pa.int64(), [2**63 - 1, -(2**63)], -(2**63), 2**63 - 1),
    "float": (pa.float32(), [1.5, TENTH], TENTH, 1.5),
    "double": (pa.float64(), [1.5, 0.1], 0.1, 1.5),
    "boolean": (pa.bool_(), [True, False], False, True),
    "date": (pa.date32(), [DAY, date(1, 1, 1)], "0001-01-01", "2026-01-02"),
    "timestamp": (pa.timestamp("us", "UTC"), [NOON], *["2026-01-02T12:00:00.000000Z"] * 2),
    "timestamp_ntz": (pa.timestamp("us"), [NOON.replace(tzinfo=None)], *["2026-01-02T12:00:00.000000"] * 2),
    "decimal": (pa.decimal128(38, 2), [Decimal("12345678901234567890.12"), Decimal("-0.10")], Decimal("-0.10"),
                Decimal("12345678901234567890.12")),
    "small decimal": (pa.decimal128(9, 3), [Decimal("1.500"), Decimal("-2.125")], Decimal("-2.125"), Decimal("1.500")),
    "string": (pa.string(), BEYOND, BEYOND[3], BEYOND[0]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_spark", [False, True])
def test_bounds_of_each_type_are_the_values_as_json(tmp_path: Path, kind: str, by_spark: bool) -> None:
    arrow, values, least, most = KINDS[kind]
    made = pa.table({"key": pa.array([*values, None], arrow)})
    if by_spark:
        pq.write_table(made, tmp_path / "x.parquet", row_group_size=1, store_schema=False)
        file = _move_spark_file_to_table(tmp_path / "x.parquet", tmp_path, ("key",))
        assert file is not None
        statistics = parse_statistics(file.stats)
    else:
        known = FileStatistics(["key"], made.schema)
        for batch in made.to_batches(max_chunksize=1):
            known.add_batch(batch)
        statistics = parse_statistics(known.to_json())
    if by_spark and pa.types.is_floating(arrow):  # whose footers do not tell of NaN
        assert statistics == {"numRecords": len(values) + 1}
        return
    ends = [statistics["minValues"]["key"], statistics["maxValues"]["key"]]
    assert ([*map(float, ends)] if pa.types.is_floating(arrow) else ends) == [least, most]
    assert (statistics["numRecords"], statistics["nullCount"]) == (len(values) + 1, {"key": 1})


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()])
def test_numbers_that_json_has_not_leave_a_file_without_bounds(odd: float, arrow: pa.DataType) -> None:
    known = FileStatistics(["key"], pa.schema([("key", arrow)]))
    known.add_batch(pa.record_batch({"key": pa.array([1.0, odd, None], arrow)}))
    assert msgspec.json.decode(known.to_json()) == {"numRecords": 3}


def test_bytes_have_no_bounds_and_nulls_are_counted() -> None:
    known = FileStatistics(["key"], pa.schema([("key", pa.binary())]))
    known.add_batch(pa.record_batch({"key": pa.array([b"\xff", None], pa.binary())}))
    assert parse_statistics(known.to_json()) == {
        "numRecords": 2,
        "minValues": {},
        "maxValues": {},
        "nullCount": {"key": 1},
    }


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{name: (arrow, values) for name, (arrow, values, _, _) in KINDS.items()},
    "binary": (pa.binary(), [b"", b"\xff", b"a"]),
    "odd double": (pa.float64(), [1.0, math.inf, -math.inf]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("marks", [False, True])
def test_keys_of_every_type_are_merged_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, marks: bool
) -> None:
    limit(monkeypatch, rewritten_rows=-1 if marks else 100)
    arrow, values = KEYS[kind]
    schema = pa.schema([("key", arrow), ("value", pa.int64())])
    lake = made(tmp_path, schema)
    for number, value in enumerate(values):
        lake.append_rows(None, TABLE, pa.table({"key": [value], "value": [number]}, schema), Txn("app", number))
    new = pa.table({"key": values, "value": [9] * len(values)}, schema)
    lake.merge_rows(NO_SPARK, TABLE, new, UPSERT, Txn("merge", 0))
    held = pa.table(DeltaTable(lake.path(TABLE)).scan()).cast(schema).to_pylist()
    assert sorted(held, key=str) == sorted(new.to_pylist(), key=str)
    if kind != "binary":
        for value in values:
            found = FolderReader(lake.path).read_rows(TABLE, ("key", eq, value))
            assert [row["value"] for row in found] == [9]


def test_properties_and_notes_of_commits_are_reported_unescaped(tmp_path: Path) -> None:
    lake = made(tmp_path, **{APPEND_ONLY: "false"})
    lake.set_property(NO_SPARK, TABLE, "sessionlake.note", BEYOND[0])
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true")
    newest = max((lake.path(TABLE) / "_delta_log").glob("*.json")).read_text(encoding="utf-8")
    assert BEYOND[0] in newest
    assert DeltaTable(lake.path(TABLE)).metadata().configuration["sessionlake.note"] == BEYOND[0]
