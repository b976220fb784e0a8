"""Rows with a column of every type in folders: written, merged, compacted and read exactly, by other readers too."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from operator import eq, ge
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sessionlake.delta.folders import compaction
from sessionlake.delta.folders.file_rows import get_column_or_nulls
from sessionlake.delta.folders.reader import FolderReader
from sessionlake.delta.folders.table_files import list_data_files
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import DELETION_VECTORS, STATISTICS_COLUMNS
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.arrow import convert_to_double_column
from sessionlake.protocol.columns import create_column_of_feed, format_python_type
from sessionlake.settings.model import Settings
from support.lakes import limit
from support.typed_feed import VALUES

TABLE = "gold.own"
NO_SPARK: Any = None


def made(folder: Path, schema: pa.Schema, indexed: str, vectors: str = "true") -> FolderStorage:
    storage = FolderStorage(Settings(home=folder))
    properties = {STATISTICS_COLUMNS: indexed, DELETION_VECTORS: vectors}
    DeltaTable.create(storage.path(TABLE), schema, configuration=properties)
    return storage


def by_key(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["key"])


@pytest.mark.parametrize("sql", VALUES)
@pytest.mark.parametrize("marks", [False, True])
def test_values_of_every_type_are_merged_and_read_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, marks: bool
) -> None:
    limit(monkeypatch, rewritten_rows=-1 if marks else 100)
    schema = pa.schema([("key", pa.string()), ("value", create_column_of_feed("value", sql).arrow)])
    storage, values = made(tmp_path, schema, "key"), [*VALUES[sql], None]
    before = [{"key": f"k{i}", "value": value} for i, value in enumerate(values)]
    storage.append_rows(None, TABLE, pa.Table.from_pylist(before, schema), Txn("app", 0))
    after = [{"key": f"k{i}", "value": value} for i, value in enumerate(reversed(values), 1)]
    source = pa.Table.from_pylist(after, schema)
    storage.merge_rows(NO_SPARK, TABLE, source, Upsert(("key",), ("value",)), Txn("merge", 0))
    wanted = [before[0], *after]
    assert by_key(FolderReader(storage.path).read_rows(TABLE)) == wanted
    if not marks:
        assert by_key(pa.table(DeltaTable(storage.path(TABLE)).scan()).cast(schema).to_pylist()) == wanted


@pytest.mark.parametrize("sql", [sql for sql in VALUES if not sql.startswith("array")])
def test_conditions_on_columns_of_every_type_skip_no_row(tmp_path: Path, sql: str) -> None:
    schema = pa.schema([("key", pa.int64()), ("value", create_column_of_feed("value", sql).arrow)])
    storage, values = made(tmp_path, schema, "value"), VALUES[sql]
    for number, value in enumerate([*values, None]):  # a file for each
        rows = pa.Table.from_pylist([{"key": number, "value": value}], schema)
        storage.append_rows(None, TABLE, rows, Txn("app", number))
    read = FolderReader(storage.path).read_rows
    for number, value in enumerate(values):
        if sql != "binary":  # has no statistics, and conditions on it are not asked for
            assert [row["key"] for row in read(TABLE, ("value", eq, value))] == [number]
            expected = [other for other, one in enumerate(values) if one >= value]
            assert sorted(row["key"] for row in read(TABLE, ("value", ge, value))) == expected


def test_files_with_columns_of_every_type_are_put_together_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_ENOUGH", (2, 2, 2))
    names = {sql: f"c{place}" for place, sql in enumerate(VALUES)}
    fields = [(name, create_column_of_feed(name, sql).arrow) for sql, name in names.items()]
    schema = pa.schema([("key", pa.int64()), *fields])
    storage = made(tmp_path, schema, ",".join(["key", *names.values()]), vectors="false")
    rows = [
        {"key": number}
        | {name: VALUES[sql][number % len(VALUES[sql])] if number else None for sql, name in names.items()}
        for number in range(4)
    ]
    for row in rows:
        storage.append_rows(None, TABLE, pa.Table.from_pylist([row], schema), Txn("app", row["key"]))
    assert storage.compact_table(NO_SPARK, TABLE) is not None
    assert len(list_data_files(DeltaTable(storage.path(TABLE)))) == 1
    assert by_key(FolderReader(storage.path).read_rows(TABLE)) == rows
    assert by_key(pa.table(DeltaTable(storage.path(TABLE)).scan()).cast(schema).to_pylist()) == rows
    for sql, name in names.items():
        if sql != "binary" and not sql.startswith("array"):
            found = [row["key"] for row in FolderReader(storage.path).read_rows(TABLE, (name, eq, rows[1][name]))]
            assert sorted(found) == [row["key"] for row in rows if row[name] == rows[1][name]]


@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (20, 4), (38, 10), (18, 18), (38, 0)])
def test_decimals_become_the_nearest_doubles(precision: int, scale: int) -> None:
    rnd, most = random.Random(precision), 10**precision - 1
    numbers = [*range(1000), most, *(rnd.randint(-most, most) for _ in range(1000))]
    values = [None, *(Decimal(f"{min(number, most)}e-{scale}") for number in numbers)]
    column = pa.chunked_array([pa.array(values, pa.decimal128(precision, scale))])
    assert convert_to_double_column(column).to_pylist() == [None if value is None else float(value) for value in values]


@pytest.mark.parametrize("sql", VALUES)
def test_python_types_are_those_of_the_values(sql: str) -> None:
    names = {"list": list, "Decimal": Decimal, "datetime": datetime, "date": date, "bytes": bytes, "str": str}
    kind = (names | {"bool": bool, "int": int, "float": float})[format_python_type(sql).partition("[")[0]]
    assert {type(value) for value in VALUES[sql]} == {kind}


def test_columns_of_a_file_that_is_older_than_a_wider_type_or_a_column_get_the_table_s_type() -> None:
    rows = pa.table({"value": pa.array([7], pa.int32())})
    for name, expected in (("value", [7]), ("new", [None])):
        column = get_column_or_nulls(rows, pa.field(name, pa.int64()), 1)
        assert (column.type, column.to_pylist()) == (pa.int64(), expected)
