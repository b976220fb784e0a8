"""Commits to folders that are written here: files in the place of others, vectors, and each version's checksum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, TableFeatures
from deltalake.schema import PrimitiveType

from sessionlake.delta.folders.commits import write_checksum_and_checkpoint
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.parquet import DataFileWriter, WrittenFile
from sessionlake.delta.folders.staging import StagedFiles, TableLocation
from sessionlake.delta.folders.table_files import list_data_files
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED, DELETION_VECTORS
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.settings.model import Settings

TABLE = "gold.own"
SCHEMA = pa.schema([("place", pa.string()), ("value", pa.int64())])
UPSERT = Upsert(("place",), ("value",))
NO_SPARK: Any = None


def rows(**values: int) -> pa.Table:
    return pa.table({"place": [*values], "value": [*values.values()]}, SCHEMA)


def file_of(folder: Path, table: pa.Table) -> WrittenFile:
    [written] = DataFileWriter(str(folder), SCHEMA, ("value",)).write_files(table.to_batches())
    return written


@pytest.fixture(params=[False, True], ids=["plain", "fed"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> FolderStorage:
    made = FolderStorage(Settings(home=tmp_path))
    fields = [Field("place", PrimitiveType("string")), Field("value", PrimitiveType("long"))]
    kept = {CHANGE_FEED: "true"} if request.param else {}
    DeltaTable.create(made.path(TABLE), Schema(fields), configuration=kept, description="own")
    return made


def staged(lake: FolderStorage, *tables: pa.Table) -> StagedFiles:
    folder = lake.path(TABLE)
    return StagedFiles(
        TableLocation(folder, TABLE, lake.hold_commit_lock), [file_of(folder, table) for table in tables]
    )


def held(lake: FolderStorage) -> dict[str, int]:
    found = pa.table(DeltaTable(lake.path(TABLE)).scan())
    return dict(zip(found["place"].to_pylist(), found["value"].to_pylist(), strict=True))


def actions(lake: FolderStorage) -> list[dict[str, Any]]:
    """Of the latest commit."""
    newest = max((lake.path(TABLE) / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def commit_marking_merge(lake: FolderStorage, number: int, table: pa.Table) -> None:
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true")
    assert merge_without_spark(DeltaTable(lake.path(TABLE)), table, UPSERT, "marking", number)


def test_files_take_the_place_of_others_once_and_what_was_appended_behind_those_stays(lake: FolderStorage) -> None:
    lake.append_rows(None, TABLE, rows(a=1, b=2), Txn("app", 0))
    commit_marking_merge(lake, 1, rows(a=3))
    former = list_data_files(DeltaTable(lake.path(TABLE)))
    lake.append_rows(None, TABLE, rows(c=4), Txn("app", 1))
    staged(lake, rows(d=5), rows(e=6)).replace_files(former, Txn("other", 7), "why")
    assert held(lake) == {"c": 4, "d": 5, "e": 6}
    version = DeltaTable(lake.path(TABLE)).version()
    again = staged(lake, rows(f=7))
    again.replace_files(former, Txn("other", 7))
    again.delete_staged_files()
    assert (held(lake), DeltaTable(lake.path(TABLE)).version()) == ({"c": 4, "d": 5, "e": 6}, version)
    assert lake.last_commit(NO_SPARK, TABLE).rows == 2
    told = {name: value for action in actions(lake) for name, value in action.items()}
    assert told["commitInfo"]["userMetadata"] == "why"
    assert told["add"]["dataChange"]
    assert told["remove"]["dataChange"]
    assert any("deletionVector" in action.get("remove", {}) for action in actions(lake))
    assert lake.latest_commits(None, TABLE, 1)[0].replaces_all_rows


def test_files_do_not_take_the_place_of_one_that_is_gone_meanwhile(lake: FolderStorage) -> None:
    lake.append_rows(None, TABLE, rows(a=1), Txn("app", 0))
    former = list_data_files(DeltaTable(lake.path(TABLE)))
    staged(lake, rows(b=2)).replace_files(former, Txn("one", 0))
    late = staged(lake, rows(c=3))
    with pytest.raises(LakeError, match="another process replaced the rows of this table"):
        late.replace_files(former, Txn("other", 0))
    late.delete_staged_files()
    assert held(lake) == {"b": 2}
    assert len([*lake.path(TABLE).glob("*.parquet")]) == 2


def test_a_table_is_emptied_once(lake: FolderStorage) -> None:
    lake.append_rows(None, TABLE, rows(a=1), Txn("app", 0))
    lake.delete_all_rows(NO_SPARK, TABLE, Txn("none", 0))
    assert held(lake) == {}
    lake.append_rows(None, TABLE, rows(b=2), Txn("app", 1))
    lake.delete_all_rows(NO_SPARK, TABLE, Txn("none", 0))
    assert held(lake) == {"b": 2}


def test_rows_are_marked_without_another_feature_that_readers_must_know(lake: FolderStorage) -> None:
    lake.append_rows(None, TABLE, rows(a=1, b=2), Txn("app", 0))
    before = DeltaTable(lake.path(TABLE)).metadata()
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true")
    delta = DeltaTable(lake.path(TABLE))
    protocol, metadata = delta.protocol(), delta.metadata()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]
    assert {"appendOnly", "invariants", "deletionVectors"} <= {*(protocol.writer_features or ())}
    assert ("changeDataFeed" in (protocol.writer_features or ())) == (CHANGE_FEED in metadata.configuration)
    assert metadata.configuration == before.configuration | {DELETION_VECTORS: "true"}
    assert (metadata.id, metadata.description, metadata.created_time) == (before.id, "own", before.created_time)
    commit_marking_merge(lake, 1, rows(a=3))
    assert held(lake) == {"a": 3, "b": 2}


def assert_noted(lake: FolderStorage) -> None:
    """The version's checksum is what delta-rs makes of the log."""
    delta = DeltaTable(lake.path(TABLE))
    told = json.loads((lake.path(TABLE) / "_delta_log" / f"{delta.version():020}.crc").read_text())
    files = list_data_files(delta)
    assert (told["numFiles"], told["tableSizeBytes"]) == (len(files), sum(file.add["size"] for file in files))
    assert told["metadata"]["configuration"] == delta.metadata().configuration
    assert told["metadata"]["schemaString"] == delta.schema().to_json()
    assert told["protocol"].get("writerFeatures", []) == (delta.protocol().writer_features or [])


def test_every_version_has_its_checksum_whoever_commits_it(lake: FolderStorage) -> None:
    steps = [
        lambda: lake.append_rows(None, TABLE, rows(a=1, b=2), Txn("app", 0)),
        lambda: staged(lake, rows(c=3)).commit_rows(Txn("app", 1)),
        lambda: merge_without_spark(DeltaTable(lake.path(TABLE)), rows(a=4), UPSERT, "other", 1, uses_vectors=False),
        lambda: lake.set_property(NO_SPARK, TABLE, APPEND_ONLY, "false"),
        lambda: lake.remove_rows(NO_SPARK, TABLE, ExpiredRowSelection((), "value", pa.table({"limit": [2]}), {})),
        lambda: lake.append_rows(None, TABLE, rows(e=5, f=6), Txn("app", 2)),
        lambda: commit_marking_merge(lake, 1, rows(e=7, g=8)),
        lambda: commit_marking_merge(lake, 2, rows(e=9, f=10)),
        lambda: staged(lake, rows(h=11)).replace_files(list_data_files(DeltaTable(lake.path(TABLE))), Txn("other", 1)),
        lambda: lake.replace_rows(None, TABLE, rows(i=12), None),
        lambda: lake.delete_all_rows(NO_SPARK, TABLE, Txn("none", 0)),
    ]
    for step in steps:
        step()
        assert_noted(lake)


def test_a_file_whose_statistics_are_corrected_is_counted_once(lake: FolderStorage) -> None:
    for number in range(3):
        lake.append_rows(None, TABLE, rows(a=number), Txn("app", number))
    newest = max((lake.path(TABLE) / "_delta_log").glob("*.json"))
    newest.write_text(
        newest.read_text().replace('"numRecords\\":1', '"numRecords\\":1,\\"note\\":\\"\\\\ud83d\\\\ude00\\"')
    )
    lake.compact_table(NO_SPARK, TABLE)
    assert lake.latest_commits(None, TABLE, 1)[0].operation == "COMPUTE STATISTICS"
    assert_noted(lake)


def test_a_commit_that_lacks_its_checksum_is_made_up_for_behind_the_next(lake: FolderStorage) -> None:
    for number in range(3):
        lake.append_rows(None, TABLE, rows(a=number), Txn("app", number))
    log = lake.path(TABLE) / "_delta_log"
    for number in (2, 3):
        (log / f"{number:020}.crc").unlink()
    lake.append_rows(None, TABLE, rows(b=1), Txn("app", 3))
    assert_noted(lake)


def test_where_it_cannot_be_known_there_is_no_checksum_and_the_commit_is_there(lake: FolderStorage) -> None:
    lake.append_rows(None, TABLE, rows(a=1), Txn("app", 0))
    log = lake.path(TABLE) / "_delta_log"
    (log / f"{1:020}.crc").write_text("{")  # as a power cut leaves it
    lake.append_rows(None, TABLE, rows(b=1), Txn("app", 1))
    assert_noted(lake)
    DeltaTable(lake.path(TABLE)).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    write_checksum_and_checkpoint(DeltaTable(lake.path(TABLE)), 3)
    assert not (log / f"{3:020}.crc").exists()
    assert held(lake) == {"a": 1, "b": 1}


def test_no_more_than_a_few_checksums_stand_beside_the_log(lake: FolderStorage) -> None:
    for number in range(25):
        lake.append_rows(None, TABLE, rows(a=number), Txn("app", number))
    assert_noted(lake)
    assert sorted(int(file.stem) for file in lake.path(TABLE).glob("_delta_log/*.crc")) == [*range(16, 26)]


def test_checksums_hold_characters_beyond_the_first_plane_unescaped(tmp_path: Path) -> None:
    """As all else that is written to a log: arrow-rs decodes some escaped ones wrong."""
    lake, name = FolderStorage(Settings(home=tmp_path)), "\U00020bb7"
    schema = pa.schema([(name, pa.string())])
    DeltaTable.create(lake.path(TABLE), schema)
    lake.append_rows(None, TABLE, pa.table({name: ["a"]}, schema), Txn("app", 0))
    checksum = lake.path(TABLE) / "_delta_log" / f"{1:020}.crc"
    assert name in checksum.read_text(encoding="utf-8")
    assert_noted(lake)
