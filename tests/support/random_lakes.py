"""Fills the lake's own tables with random rows of the right types, so that any statement finds rows in them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.tables import TABLES
from support.lakes import write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 60
# Texts that queries look for; others join with each other because there are few.
_TEXTS = {
    "layer": ("bronze", "silver", "silver_tables", "gold"),
    "app_id": ("rebuild:1", "silver-1", "gold-1"),
    "action": ("isolated", "recorded", "dropped", "applied"),
    "event": ("gap", "duplicate", "healed"),
    "integrity": ("once", "strict"),
    "reason": ("gap", "bad_value", "future_kafka_ts"),
    "table": ("silver.session_changes", "silver.sessions"),
    "source": ("kafka", "recovered"),
}
_OTHER_TEXTS = ("a", "b", "Ärger", "")
_NULLS = 0.1
_NEVER_NULL = ("event", "reason")  # keys of maps in a view


def write_random_lake(spark: SparkSession, lake: Lake, seed: int = 14) -> None:
    """Creates all tables that every lake has, and appends sixty random rows to each, in two commits."""
    chance = random.Random(seed)
    lake.create_or_update_tables(spark, TABLES)
    for table in TABLES:
        schema = lake.reader(spark).read_table_schema(table)
        rows = [{field.name: _value(chance, field.name, field.type) for field in schema} for _ in range(_ROWS)]
        write_rows(spark, lake, table, rows[: _ROWS // 2])
        write_rows(spark, lake, table, rows[_ROWS // 2 :])


def _value(chance: random.Random, name: str, kind: pa.DataType) -> Any:
    if chance.random() < _NULLS and name not in _NEVER_NULL:
        return None
    if types.is_list(kind) or types.is_large_list(kind):
        return [_value(chance, name, kind.value_type) for _ in range(chance.randrange(3))]
    if types.is_struct(kind):
        return {field.name: _value(chance, field.name, field.type) for field in kind}
    if types.is_map(kind):
        return [(chance.choice("xyz"), _value(chance, name, kind.item_type))]
    return _simple_value(chance, name, kind)


def _simple_value(chance: random.Random, name: str, kind: pa.DataType) -> Any:
    if types.is_timestamp(kind):
        ago = timedelta(milliseconds=chance.randrange(7_200_000))
        return chance.choice((datetime.now(UTC) - ago, datetime.fromtimestamp(0, UTC) - timedelta(milliseconds=1)))
    if types.is_boolean(kind):
        return chance.random() < 1 / 2
    if types.is_decimal(kind):
        return Decimal(chance.randrange(100))
    if types.is_integer(kind) or types.is_floating(kind):
        return chance.randrange(1, 5)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind)
    return chance.choice((b"", b"\xff", b"key") if is_binary else _TEXTS.get(name, _OTHER_TEXTS))
