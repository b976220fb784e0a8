"""SQL texts and column lists, quoted."""

from __future__ import annotations

from collections.abc import Iterable

from sessionlake.delta.schemas.definition import Column
from sessionlake.protocol.names import quote


def text(value: str) -> str:
    """A SQL string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def columns_ddl(columns: Iterable[Column]) -> str:
    """The columns as `CREATE TABLE` and `ADD COLUMNS` list them: name, type and comment."""
    return ", ".join(f"{quote(column.name)} {column.sql} COMMENT {text(column.comment)}" for column in columns)
