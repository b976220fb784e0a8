"""A table in a home that undergoes every operation, with the expected rows of each version."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.table_files import open_table
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import CHANGE_FEED, CHECKPOINTS, DELETION_VECTORS, STATISTICS_COLUMNS
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE

TABLE = "gold.life"
YOUNGER = "younger"
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.int64()),
        ("small", pa.int8()),
        ("medium", pa.int16()),
        ("middle", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("yes", pa.bool_()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(38, 2)),
        ("list", pa.list_(pa.string())),
        ("pair", pa.struct([("left", pa.string()), ("right", pa.int64())])),
    ]
)
INDEXED = ("key", "number", "double", "day", "at", "amount")  # Spark refuses statistics of booleans and bytes
TEXTS = ("a", "\U0010ffff", "\U00020bb7", "\U0001f600\\ud83d", 'quo"te\n\u2028', "z" * 300, "")
NUMBERS = (0.5, math.nan, math.inf, -math.inf, -0.0, 1e300)
NO_SPARK: Any = None
Row = dict[str, Any]
Rows = dict[str, Row]


def row(number: int) -> Row:
    """Returns a row with distinct values in each column. Every seventh row has only its key."""
    key = TEXTS[number % len(TEXTS)] + str(number)
    if number % 7 == 3:
        return dict.fromkeys(SCHEMA.names) | {"key": key, "number": number}
    return {
        "key": key,
        "number": number,
        "small": number % 128,
        "medium": -number,
        "middle": number**3,
        "single": number / 4,
        "double": NUMBERS[number % len(NUMBERS)],
        "yes": number % 2 == 0,
        "bytes": bytes([number % 256, 255]),
        "day": date(1, 1, 1) if number % 5 == 0 else date(2026, 1, 1 + number % 28),
        "at": datetime(2026, 1, 1, 0, 0, number % 60, number, tzinfo=UTC),
        "amount": Decimal("12345678901234567890.12") + number,
        "list": [TEXTS[1], None, str(number)],
        "pair": {"left": TEXTS[2], "right": number},
    }


class Life:
    """Applies operations to a table, and to its rows in a dictionary.

    Attributes:
        held: The expected rows, by key.
        versions: Expected rows of each version, and whether it needs a reader that supports deletion vectors.
    """

    def __init__(self, lake: FolderStorage, spark: Any = NO_SPARK) -> None:
        self.lake, self.spark, self.held = lake, spark, Rows()
        self.versions = dict[int, tuple[Rows, bool]]()
        self._number = 0
        properties = {STATISTICS_COLUMNS: ",".join(INDEXED), CHECKPOINTS: "5", CHANGE_FEED: "true"}
        DeltaTable.create(lake.path(TABLE), SCHEMA, configuration=properties)
        self.note()

    def note(self) -> None:
        """Records the expected rows of the versions since the last call."""
        delta = open_table(self.lake.path(TABLE))
        marked = "deletionVectors" in (delta.protocol().reader_features or ())
        for version in range(max(self.versions, default=-1) + 1, delta.version() + 1):
            self.versions[version] = {key: dict(one) for key, one in self.held.items()}, marked

    def _table(self, rows: list[Row], *more: str) -> pa.Table:
        fields = [*SCHEMA, *(pa.field(name, pa.string()) for name in more)]
        return pa.Table.from_pylist(rows, pa.schema(fields))

    def _new(self, count: int) -> list[Row]:
        self._number += count
        return [row(number) for number in range(self._number - count, self._number)]

    def append(self, count: int = 5) -> None:
        rows = self._new(count)
        self.lake.append_rows(self.spark, TABLE, self._table(rows), Txn("append", self._number))
        self.held |= {one["key"]: one for one in rows}

    def mark(self, *, on: bool) -> None:
        self.lake.set_property(self.spark, TABLE, DELETION_VECTORS, "true" if on else "false")

    def merge(self, *, marks: bool = True) -> None:
        """Merges: changes every third row, removes every fifth, and adds two."""
        keys = [*self.held]
        changed = [self.held[key] | {"double": math.nan, "amount": Decimal("-0.01")} for key in keys[::3]]
        gone = [self.held[key] for key in keys[1::5] if key not in {one["key"] for one in changed}]
        rows = [*changed, *self._new(2), *gone]
        columns = tuple(name for name in SCHEMA.names if name != "key")
        younger = (YOUNGER,) if any(YOUNGER in one for one in rows) else ()
        source = self._table(rows, *younger)
        source = source.append_column(DELETE, [[n >= len(rows) - len(gone) for n in range(len(rows))]])
        upsert = Upsert(("key",), (*columns, *younger), deletes=True)
        assert merge_without_spark(
            open_table(self.lake.path(TABLE)), source, upsert, "merge", self._number, uses_vectors=marks
        )
        self.held |= {one["key"]: one for one in rows}
        for one in gone:
            del self.held[one["key"]]

    def compact(self) -> None:
        assert self.lake.compact_table(self.spark, TABLE) is not None

    def add_column(self) -> None:
        DeltaTable(self.lake.path(TABLE)).alter.add_columns(Field(YOUNGER, PrimitiveType("string")))
        self.held = {key: one | {YOUNGER: None} for key, one in self.held.items()}

    def remove(self) -> None:
        least = sorted(one["number"] for one in self.held.values())[3]
        limits = pa.table({"limit": [least]})
        self.lake.remove_rows(self.spark, TABLE, ExpiredRowSelection((), "number", limits, {"number": least}))
        self.held = {key: one for key, one in self.held.items() if one["number"] > least}

    def replace(self) -> None:
        rows = [one for one in self.held.values() if one["number"] % 2]
        self.lake.replace_rows(self.spark, TABLE, self._table(rows, YOUNGER), Txn("replace", self._number))
        self.held = {one["key"]: one for one in rows}

    def purge_vectors(self) -> None:
        self.lake.purge_deletion_vectors(TABLE)

    def steps(self) -> Iterator[Callable[[], None]]:
        """Yields the operations in order."""
        yield from [self.append] * 4
        yield lambda: self.merge(marks=False)
        yield lambda: self.mark(on=True)
        yield from [self.append, self.merge, self.append, self.merge]
        yield lambda: self.mark(on=False)
        yield from [self.compact, self.append, self.append, self.add_column]
        yield lambda: self.mark(on=True)
        yield from [self.merge, self.append, self.remove, self.merge, self.purge_vectors, self.append]
        yield lambda: self.merge(marks=False)
        yield from [self.replace, self.append]
        yield lambda: self.mark(on=True)
        yield from [self.merge, self.append, self.merge]

    def live(self) -> None:
        """Applies all operations."""
        for step in self.steps():
            step()
            self.note()


def comparable(rows: Mapping[Any, Row] | pa.Table, columns: list[str]) -> list[str]:
    """Returns sorted texts of rows that do not depend on the reader."""
    given = rows.to_pylist() if isinstance(rows, pa.Table) else rows.values()
    return sorted(repr([_plain(one.get(name)) for name in columns]) for one in given)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, float) and value == 0:
        return 0.0
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
