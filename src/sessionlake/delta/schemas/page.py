"""Builds the data dictionary `docs/reference/tables.md` from the table definitions: run `make reference`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from sessionlake.delta.schemas.definition import DECLARED, Column, TableSchema, WriteMode
from sessionlake.delta.schemas.tables import TABLES

_HEAD = """\
# Tables

**Which tables are there, who writes them, and what does each column mean?**

Every table that each lake has, schema by schema. Storage has the same texts as comments of tables and columns, which
`DESCRIBE` shows. Tables that a configuration declares (processors' tables, gold's products, enriched and reference
tables) have such comments, too. Gold's two views are [at the end](#views).

**Views of feeds.** Each feed of `capture.feeds` has two views, in `sessionlake query`, in notebooks and in a catalog:
`silver.<feed>` has the rows of its sessions now, and `silver.<feed>_changes` all changes. They have only rows of topics
that the feed reads: `topic`, `session_id`, the feed's columns with its key first, `_time` (the event time as a
timestamp; `_ts` in the tables is a number), and `_rescued`, `_seq`, `_offset` and `partition` as in the tables. A
column declared as `variant` is a VARIANT there, and JSON text in the tables.

*Written by* names the module that usually commits the table's rows. Rebuilds, recovery, forgetting and retention also
replace or remove rows. Timestamps are instants, in UTC. Stream time, session, life, epoch and the project's other words
are in the [glossary](glossary.md). Only tables in a catalog are clustered.

This page is made from the definitions in [`delta/schemas/`](../../src/sessionlake/delta/schemas): run `make reference`
after a change.
"""
_WRITES = {
    WriteMode.APPEND: "appended, never changed",
    WriteMode.MERGE: "merged by key",
    WriteMode.BOTH: "appended, and merged by key",
    WriteMode.REPLACE: "replaced, all at once",
}


def render_tables_page() -> str:
    """Returns the reference page of all tables as Markdown: a section for each table, with all its columns."""
    return "\n".join([_HEAD, *_render_table_sections()])


def _render_table_sections() -> Iterator[str]:
    names = sorted(TABLES, key=lambda table: _ORDER.index(table.partition(".")[0]))
    for schema, tables in groupby(names, key=lambda table: table.partition(".")[0]):
        yield f"## {schema}\n"
        for table in tables:
            yield from _render_table_section(table, TABLES[table])


_ORDER = ("bronze", "silver", "gold", "ops")


def _render_table_section(name: str, schema: TableSchema) -> Iterator[str]:
    file = f"{schema.written_by.replace('.', '/')}.py"
    yield f"### {name}\n"
    yield f"{schema.comment}.\n"
    yield f"- Written by: [`{file}`](../../src/sessionlake/{file})"
    yield f"- Rows are: {_WRITES[schema.writes]}"
    if schema.cluster_by:
        yield f"- Clustered by: {', '.join(f'`{key}`' for key in schema.cluster_by)}"
    if schema.change_feed:
        yield "- Change data feed: on"
    yield "\n| column | type | meaning |\n|---|---|---|"
    yield from map(_render_column_row, schema.definitions)
    yield ""


def _render_column_row(column: Column) -> str:
    name, kind = (f"`{column.name}`", f"`{column.sql}`")
    if column.name == DECLARED:
        name, kind = "each of `capture.columns`, or of all feeds", "as declared"
    return f"| {name} | {kind} | {column.comment} |"
