"""Definitions of all tables that every lake has. Table and column names are a public contract: users query them."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from sessionlake.delta.schemas.bronze import BRONZE_SCHEMAS
from sessionlake.delta.schemas.definition import DECLARED, TableSchema
from sessionlake.delta.schemas.gold import GOLD_SCHEMAS
from sessionlake.delta.schemas.ops import OPS_SCHEMAS
from sessionlake.delta.schemas.rules import RULE_SCHEMAS
from sessionlake.delta.schemas.silver import SILVER_SCHEMAS

COUNTS = ("parts", "applied", "duplicates", "quarantined", "held", "ignored")
"""Ledger columns that count parts of messages. In every entry of silver the first is the sum of the others."""
TABLES: dict[str, TableSchema] = BRONZE_SCHEMAS | SILVER_SCHEMAS | GOLD_SCHEMAS | RULE_SCHEMAS | OPS_SCHEMAS
"""All these definitions, by two-level table name."""


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Returns the Arrow schema of a table, without the declared capture columns.

    Needs a running Spark session, which parses the types.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromDDL(", ".join(f"{name} {sql}" for name, sql in TABLES[table].column_types)))


def list_fixed_columns(table: str) -> tuple[str, ...]:
    """Returns the names of a table's columns, without the declared capture columns."""
    return tuple(name for name, _ in TABLES[table].column_types if name != DECLARED)
