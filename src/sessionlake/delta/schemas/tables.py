"""The definitions of all tables that every lake has. Table and column names are a public contract (see README)."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from sessionlake.delta.schemas.bronze import BRONZE_SCHEMAS
from sessionlake.delta.schemas.definition import DECLARED, TableSchema
from sessionlake.delta.schemas.gold import GOLD_SCHEMAS
from sessionlake.delta.schemas.ops import OPS_SCHEMAS
from sessionlake.delta.schemas.rules import RULE_SCHEMAS
from sessionlake.delta.schemas.silver import SILVER_SCHEMAS

COUNTS = ("messages", "applied", "duplicates", "quarantined", "held")
"""Ledger columns that balance in every entry of silver: the first is the sum of the others."""
TABLES: dict[str, TableSchema] = BRONZE_SCHEMAS | SILVER_SCHEMAS | GOLD_SCHEMAS | RULE_SCHEMAS | OPS_SCHEMAS
"""The definitions by table name."""


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Returns a table's columns as an Arrow schema, without declared ones.

    Needs a running session to parse the types.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromDDL(", ".join(f"{name} {sql}" for name, sql in TABLES[table].columns)))


def fixed_columns(table: str) -> tuple[str, ...]:
    """Returns a table's column names without the declared ones."""
    return tuple(name for name, _ in TABLES[table].columns if name != DECLARED)
