"""Every version of a table as readers see it that share no code with its writer: delta-rs, polars and DuckDB."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.delta.catalog.storage import CatalogStorage
from sessionlake.delta.folders import compaction as tiers
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.table_files import open_table
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.names import ROWS
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import UsageError
from sessionlake.settings.model import Settings
from support.table_life import SCHEMA, TABLE, TEXTS, YOUNGER, Life, comparable


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "_ENOUGH", (2, 2, 2))
        life = Life(FolderStorage(Settings(home=tmp_path_factory.mktemp("home"))))
        life.live()
        yield life


@cache
def connected() -> duckdb.DuckDBPyConnection:
    """With the extension, which takes longer to load than a version to read."""
    [extension] = Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension")
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def by_duckdb(folder: Path, version: int) -> pa.Table:
    query = "SELECT * FROM delta_scan(?, version => ?)"
    return connected().execute(query, [str(folder), version]).to_arrow_table()


READERS: dict[str, Callable[[Path, int], pa.Table]] = {
    "delta-rs": lambda folder, version: pa.table(DeltaTable(folder, version=version).scan()),
    "polars": lambda folder, version: pl.read_delta(str(folder), version=version).to_arrow(),
    "DuckDB": by_duckdb,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_version_has_its_rows_and_no_others(life: Life, reader: str) -> None:
    assert len(life.versions) >= 30
    folder, columns = life.lake.path(TABLE), [*SCHEMA.names, YOUNGER]
    for version, (rows, _) in life.versions.items():
        found = READERS[reader](folder, version)
        assert comparable(found, columns) == comparable(rows, columns), f"version {version}"


FINDERS: dict[str, Callable[[Path, str], int]] = {
    "delta-rs": lambda folder, key: (
        pa.table(DeltaTable(folder).scan(predicate="key = '" + key.replace("'", "''") + "'")).num_rows
    ),
    "polars": lambda folder, key: pl.scan_delta(str(folder)).filter(pl.col("key") == key).collect().height,
}


@pytest.mark.parametrize("reader", FINDERS)
def test_every_row_is_found_by_its_key_whatever_its_characters(life: Life, reader: str) -> None:
    """By statistics alone, a reader leaves out files."""
    keys = [key for key in life.held if key.startswith(TEXTS[1:3]) or len(key) > 300]
    assert len(keys) > 3
    assert [FINDERS[reader](life.lake.path(TABLE), key) for key in keys] == [1] * len(keys)


def test_the_change_feed_tells_of_every_commit_what_it_has_changed(life: Life) -> None:
    """From one version to the next, the rows that come and go are those that differ.

    Of a commit without a file of changes that removes one with marked rows, delta-rs takes these for rows that go now.
    """
    folder, columns = life.lake.path(TABLE), SCHEMA.names
    left_out = [version for version in life.versions if _removes_marked_rows(folder, version)]
    assert len(left_out) == 1, "the removal: Spark's feed is right there"
    for version in [n for n in life.versions if n and n not in left_out]:
        delta = DeltaTable(folder)
        fed = pa.table(delta.load_cdf(starting_version=version, ending_version=version, allow_out_of_range=True))
        before, after = (comparable(life.versions[n][0], columns) for n in (version - 1, version))
        left = [*before, *_told(fed, {"insert", "update_postimage"})]
        for one in _told(fed, {"delete", "update_preimage"}):
            left.remove(one)
        assert sorted(left) == after, f"version {version}"


def _removes_marked_rows(folder: Path, version: int) -> bool:
    lines = (folder / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8").splitlines()
    actions = [json.loads(line) for line in lines]
    gone = [action["remove"] for action in actions if action.get("remove", {}).get("dataChange")]
    return any("deletionVector" in one for one in gone) and not any("cdc" in action for action in actions)


def _told(fed: pa.Table, changes: set[str]) -> list[str]:
    rows = [row for row in fed.to_pylist() if row["_change_type"] in changes]
    return comparable(dict(enumerate(rows)), SCHEMA.names)


def test_readers_that_know_no_vectors_refuse_versions_that_may_have_some_and_read_all_others(life: Life) -> None:
    """As pandas through `deltalake` does."""
    folder, columns = life.lake.path(TABLE), [*SCHEMA.names, YOUNGER]
    for version, (rows, marked) in life.versions.items():
        delta = DeltaTable(folder, version=version)
        if marked:
            with pytest.raises(DeltaProtocolError, match="deletionVectors"):
                delta.to_pyarrow_table()
        else:
            assert comparable(delta.to_pyarrow_table(), columns) == comparable(rows, columns), f"version {version}"


def test_a_table_whose_vectors_are_purged_is_read_by_pandas(life: Life) -> None:
    folder = life.lake.path(TABLE)
    rewritten = life.lake.purge_deletion_vectors(TABLE)
    assert rewritten > 0
    assert sorted(DeltaTable(folder).to_pandas()["key"]) == sorted(life.held)
    assert life.lake.purge_deletion_vectors(TABLE) == 0
    version = DeltaTable(folder).version()
    assert (folder / "_delta_log" / f"{version:020}.checkpoint.parquet").is_file()


def test_the_command_rewrites_a_table_once_without_spark_and_says_what_is_wrong(tmp_path: Path) -> None:
    lake, rows = FolderStorage(Settings(home=tmp_path)), pa.table({"row_id": ["a", "b"], "value": [1, 2]})
    write_deltalake(lake.path(ROWS), rows)
    lake.set_property(None, ROWS, DELETION_VECTORS, "true")
    upsert = Upsert(("row_id",), ("value",))
    assert merge_without_spark(open_table(lake.path(ROWS)), rows.slice(1), upsert, "app", 0)
    for rewritten in (1, 0):
        done = purged(tmp_path, ROWS)
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"table": ROWS, "files_rewritten": rewritten})
    assert sorted(DeltaTable(lake.path(ROWS)).to_pandas()["row_id"]) == ["a", "b"]
    refused = purged(tmp_path, "silver.sessions")
    assert refused.exit_code == 2
    assert f"there is no table 'silver.sessions'. Name one of the tables of this lake: {ROWS}" in " ".join(
        refused.stderr.split()
    )
    with pytest.raises(UsageError, match="DROP FEATURE deletionVectors"):
        CatalogStorage(Settings(home=tmp_path, catalog="main")).purge_deletion_vectors(ROWS)


def purged(home: Path, table: str) -> Result:
    words = ["maintain", "--purge-vectors", table, "--format", "json"]
    return CliRunner().invoke(cli.app, words, env={"SESSIONLAKE_HOME": str(home)})
