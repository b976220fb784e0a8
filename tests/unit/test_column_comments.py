"""Comments of columns in folders: every commit keeps them, data files do not have them, tables may lack them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.ddl import build_columns_ddl, build_create_table_statements, quote_sql_string
from sessionlake.delta.schemas.definition import Column, TableSchema
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.settings.model import Settings

TABLE = "gold.own"
COMMENTS = {"key": "What the row is about", "value": "It's a number; null if unknown"}


def made(folder: Path, comments: dict[str, str]) -> FolderStorage:
    lake = FolderStorage(Settings(home=folder))
    fields = [
        Field(name, PrimitiveType("long"), metadata={"comment": comments[name]} if comments else None)
        for name in COMMENTS
    ]
    DeltaTable.create(lake.path(TABLE), Schema(fields))
    return lake


def comments_of(lake: FolderStorage) -> dict[str, str]:
    fields = DeltaTable(lake.path(TABLE)).schema().fields
    return {field.name: field.metadata["comment"] for field in fields if "comment" in field.metadata}


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"key": [key for key, _ in pairs], "value": [value for _, value in pairs]})


@pytest.mark.parametrize("comments", [COMMENTS, {}], ids=["with comments", "without"])
def test_every_kind_of_commit_leaves_the_comments_as_they_are(tmp_path: Path, comments: dict[str, str]):
    lake = made(tmp_path, comments)
    lake.append_rows(None, TABLE, rows((1, 10), (2, 20)), Txn("app", 0))
    lake.merge_rows(
        None, TABLE, rows((2, 21), (3, 30)), Upsert(("key",), ("value",), pruned_by=("key",)), Txn("app", 1)
    )
    lake.set_property(None, TABLE, "sessionlake.note", "set")
    found = lake.reader(None).read_arrow_table(TABLE).sort_by("key")
    assert found.to_pylist() == rows((1, 10), (2, 21), (3, 30)).to_pylist()
    lake.replace_rows(None, TABLE, found, Txn("app", 2))  # rows as they were read
    assert lake.reader(None).read_arrow_table(TABLE).num_rows == 3
    assert comments_of(lake) == comments


def test_files_of_rows_have_no_comments(tmp_path: Path):
    lake = made(tmp_path, COMMENTS)
    lake.append_rows(None, TABLE, rows((1, 10)), Txn("app", 0))
    [file] = lake.path(TABLE).glob("*.parquet")
    assert b"What the row is about" not in file.read_bytes()
    assert pq.read_schema(file).field("key").metadata is None


def test_names_and_comments_are_quoted():
    columns = (Column("a`b", "int", "it's \\ so"), Column("c", "string", ""))
    assert build_columns_ddl(columns) == "`a``b` int COMMENT 'it\\'s \\\\ so', `c` string COMMENT ''"
    assert quote_sql_string("'") == "'\\''"


@pytest.mark.parametrize(("identifier", "statements"), [("`main`.`silver`.`a`", 1), ("`\U0001f600`.`silver`.`a`", 2)])
def test_clustering_is_a_statement_of_its_own_behind_characters_that_delta_miscounts(
    identifier: str, statements: int
) -> None:
    column = Column("a", "string", "A text")
    schema = TableSchema((column,), "A table", written_by="silver.job", cluster_by=("a",))
    found = list(build_create_table_statements(identifier, schema, [column], {}))
    assert ["CLUSTER BY (`a`)" in one for one in found] == [False] * (statements - 1) + [True]
