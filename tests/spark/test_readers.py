"""Every version of a table as Spark sees it, and what Spark does to it as other readers see it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sessionlake.delta.folders import compaction as tiers
from sessionlake.delta.folders.table_files import open_table
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.settings.model import Settings
from support.table_life import SCHEMA, TABLE, YOUNGER, Life, comparable

COLUMNS = [*SCHEMA.names, YOUNGER]


@pytest.fixture
def life(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    """In a home below a folder of the name that Spark's tasks give theirs."""
    monkeypatch.setattr(tiers, "_ENOUGH", (2, 2, 2))
    return Life(FolderStorage(Settings(home=tmp_path / "_temporary" / "home")), spark)


def by_spark(spark: Any, life: Life, version: int) -> pa.Table:
    return life.lake.read(spark, TABLE, {"versionAsOf": version}).toArrow()


def test_spark_and_every_reader_of_files_see_the_rows_of_every_version(spark: Any, life: Life) -> None:
    """Through what Spark does as well: OPTIMIZE, MERGE, append, a constraint, VACUUM and a history that is removed."""
    life.live()
    lake, folder = life.lake, life.lake.path(TABLE)
    life.compact()  # rows are marked here: Spark merges the files
    life.note()
    for version, (rows, _) in [*life.versions.items()][::6]:
        assert comparable(by_spark(spark, life, version), COLUMNS) == comparable(rows, COLUMNS), f"version {version}"
    life.mark(on=False)
    lake.vacuum_table(spark, TABLE, HistoryToKeep(timedelta(0)))
    assert lake.find_missing_files(spark, TABLE) == [], "files of vectors that are in use stay, though marking is off"
    assert_read_by_all(spark, life)
    life.append()
    lake.purge_history(spark, TABLE, "receipt")
    assert_read_by_all(spark, life)
    lake.purge_deletion_vectors(TABLE)
    assert comparable(DeltaTable(folder).to_pyarrow_table(), COLUMNS) == comparable(life.held, COLUMNS)
    assert_read_by_all(spark, life)


def assert_read_by_all(spark: Any, life: Life) -> None:
    folder = life.lake.path(TABLE)
    version = open_table(folder).version()
    expected = comparable(life.held, COLUMNS)
    assert comparable(by_spark(spark, life, version), COLUMNS) == expected
    assert comparable(pa.table(DeltaTable(folder).scan()), COLUMNS) == expected
    assert comparable(pl.read_delta(str(folder)).to_arrow(), COLUMNS) == expected


@pytest.mark.soak
def test_a_constraint_holds_for_every_reader_of_what_is_written_to_the_table_from_then_on(
    spark: Any, life: Life
) -> None:
    """What asks more of its writers, Spark writes."""
    for _ in range(3):
        life.append(3)
    spark.sql(f"ALTER TABLE {life.lake.to_sql_identifier(TABLE)} ADD CONSTRAINT few CHECK (number < 1000)")
    life.append(3)
    with pytest.raises(Exception, match="few"):
        life.lake.append_rows(spark, TABLE, life._table([{"key": "much", "number": 1000}]), Txn("too", 1))
    life.lake.set_property(spark, TABLE, DELETION_VECTORS, "false")
    life.lake.compact_table(spark, TABLE)
    life.remove()
    assert_read_by_all(spark, life)
