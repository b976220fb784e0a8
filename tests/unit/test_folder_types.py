"""Rows with a column of every type in folders: written, merged, compacted and read exactly, by other readers too."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import eq, ge
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sessionlake.delta.folders.reader import FolderReader
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import DELETION_VECTORS, STATISTICS_COLUMNS
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.arrow import to_doubles
from sessionlake.protocol.columns import column_of_feed, python_type
from sessionlake.settings.model import Settings
from support.lakes import limit

TABLE = "gold.own"
NO_SPARK: Any = None
NOON = datetime(2026, 1, 2, 12, 0, 0, 1, tzinfo=UTC)
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [1.5, -0.25],
    "double": [0.1, -1e300],
    "string": ["", "\U0001f600"],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("0.10")],
    "decimal(18,18)": [Decimal("0.000000000000000001"), Decimal("-0.999999999999999999")],
    "decimal(38,10)": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")],
    "date": [FIRST.date(), LAST.date(), date(1969, 12, 31)],
    "timestamp": [FIRST, LAST, NOON],
    "timestamp_ntz": [FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None), NOON.replace(tzinfo=None)],
    "binary": [b"", b"\xff\x00", b"text"],
    "array<string>": [[], ["a", None], ["\U0001f600"]],
    "array<decimal(38,10)>": [[Decimal("-0.0000000001"), None], []],
    "array<timestamp>": [[LAST, None], [FIRST]],
    "array<binary>": [[b"", None, b"\xff"], []],
    "array<array<int>>": [[[1, None], None, []], [[-(2**31)]]],
}
"""Values of each type that a feed's column can have."""


def made(folder: Path, schema: pa.Schema, indexed: str) -> FolderStorage:
    storage = FolderStorage(Settings(home=folder))
    properties = {STATISTICS_COLUMNS: indexed, DELETION_VECTORS: "true"}
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
    schema = pa.schema([("key", pa.string()), ("value", column_of_feed("value", sql).arrow)])
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
    schema = pa.schema([("key", pa.int64()), ("value", column_of_feed("value", sql).arrow)])
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


@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (20, 4), (38, 10), (18, 18), (38, 0)])
def test_decimals_become_the_nearest_doubles(precision: int, scale: int) -> None:
    rnd, most = random.Random(precision), 10**precision - 1
    numbers = [*range(1000), most, *(rnd.randint(-most, most) for _ in range(1000))]
    values = [None, *(Decimal(f"{min(number, most)}e-{scale}") for number in numbers)]
    column = pa.chunked_array([pa.array(values, pa.decimal128(precision, scale))])
    assert to_doubles(column).to_pylist() == [None if value is None else float(value) for value in values]


@pytest.mark.parametrize("sql", VALUES)
def test_python_types_are_those_of_the_values(sql: str) -> None:
    names = {"list": list, "Decimal": Decimal, "datetime": datetime, "date": date, "bytes": bytes, "str": str}
    kind = (names | {"bool": bool, "int": int, "float": float})[python_type(sql).partition("[")[0]]
    assert {type(value) for value in VALUES[sql]} == {kind}
