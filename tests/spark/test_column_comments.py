"""Comments of columns in storage: a reader is shown them, and tables that were made without them go on as they are."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from sessionlake.delta import home as folders
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas import ddl
from sessionlake.delta.schemas.definition import Column, TableSchema
from sessionlake.delta.schemas.names import CHANGES, LEDGER, MESSAGES, ROWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.protocol.names import quote
from sessionlake.settings.model import CaptureSettings, Settings
from support.lakes import assert_silver_is_the_truth, write_bronze
from support.layers import run_layers
from support.streams import COLUMNS, LIGHT, StreamMaker, cut

OWN = TableSchema(
    (
        Column("plain", "int", "A count"),
        Column("grüße?", "string", 'It\'s "quoted", with a \\ and a `tick`; null if unknown'),
    ),
    "A table of the test's own",
    written_by="processors.job",
)


def shown(spark: Any, lake: Lake, table: str) -> dict[str, str | None]:
    """The columns and their comments as SQL shows them."""
    rows = spark.sql(f"DESCRIBE TABLE {lake.to_sql_identifier(table)}").collect()
    names = {*lake.storage.read_column_types(spark, table)}
    return {row["col_name"]: row["comment"] for row in rows if row["col_name"] in names}


def without_comments(columns: Iterable[Column]) -> str:
    """As tables were made before columns had comments."""
    return ", ".join(f"{quote(column.name)} {column.sql}" for column in columns)


def test_sql_shows_the_comment_of_every_column(spark: Any, settings: Settings) -> None:
    lake = Lake(settings, {"silver.own": OWN})
    lake.create_or_update_tables(spark, [MESSAGES, ROWS, LEDGER, "silver.own"])
    for table in (MESSAGES, ROWS, LEDGER):
        wanted = {column.name: column.comment for column in TABLES[table].list_column_definitions(settings)}
        assert shown(spark, lake, table) == wanted, table
    assert shown(spark, lake, "silver.own") == {column.name: column.comment for column in OWN.definitions}


def test_a_column_that_is_added_has_its_comment(spark: Any, settings: Settings) -> None:
    narrow = settings.model_copy(update={"capture": CaptureSettings(columns={"price": "double"})})
    wide = settings.model_copy(update={"capture": CaptureSettings(columns={"price": "double", "qty": "int"})})
    Lake(narrow).create_or_update_tables(spark, [ROWS])
    Lake(wide).create_or_update_tables(spark, [ROWS])
    found = shown(spark, Lake(wide), ROWS)
    assert (
        found["qty"] == found["price"] == "Declared column: the row's value; null if it was never set, or set to null"
    )


@pytest.mark.soak
def test_layers_go_on_over_tables_that_were_made_without_comments(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(**location, capture=CaptureSettings(columns=COLUMNS, on_violation="isolate", integrity="once"))
    rnd, lake = random.Random(5), Lake(settings)
    messages = StreamMaker(rnd, LIGHT, ["capture.a"]).make(40)
    first, second = cut(rnd, messages, 2)
    with monkeypatch.context() as patch:
        for module in (folders, ddl):
            patch.setattr(module, "columns_ddl", without_comments)
        lake.create_or_update_tables(spark, [MESSAGES])
        write_bronze(spark, lake, first)
        run_layers(spark, settings)
    version = lake.last_commit(spark, ROWS).version
    lake.create_or_update_tables(spark, [CHANGES, ROWS])
    assert lake.last_commit(spark, ROWS).version == version
    assert {*shown(spark, lake, ROWS).values()} <= {None, ""}
    write_bronze(spark, lake, second)
    run_layers(spark, settings)
    assert_silver_is_the_truth(spark, settings, messages)
