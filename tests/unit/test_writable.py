"""One gate before every commit that is made here: what a table asks of its writers, and the rows that are marked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from sessionlake.delta.folders import compaction as tiers
from sessionlake.delta.folders import removal as folder_removal
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.staging import StagedFiles
from sessionlake.delta.folders.table_files import list_data_files, open_table
from sessionlake.delta.folders.writable import find_spark_only_feature
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED, DELETION_VECTORS
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.protocol.names import DELETE
from sessionlake.settings.model import Settings

TABLE = "gold.own"
SCHEMA = pa.schema([("place", pa.string()), ("value", pa.int64())])
UPSERT = Upsert(("place",), ("value",), deletes=True)
UP_TO_1 = ExpiredRowSelection((), "value", pa.table({"limit": [1]}), {})
NO_SPARK: Any = None


def rows(*, delete: bool | None = None, **values: int) -> pa.Table:
    found = pa.table({"place": [*values], "value": [*values.values()]}, SCHEMA)
    return found if delete is None else found.append_column(DELETE, [[delete] * len(values)])


@pytest.fixture
def lake(tmp_path: Path) -> FolderStorage:
    made = FolderStorage(Settings(home=tmp_path))
    fields = [Field("place", PrimitiveType("string")), Field("value", PrimitiveType("long"))]
    DeltaTable.create(made.path(TABLE), Schema(fields))
    return made


def restated(lake: FolderStorage, *, features: list[str] | None = None, version: tuple[int, int] = (3, 7),
             properties: dict[str, str] | None = None, field: dict[str, Any] | None = None,
             partitioned: bool = False, mapped: bool = False) -> None:  # fmt: skip
    """Commits protocol and metadata as another writer may leave them."""
    delta = DeltaTable(lake.path(TABLE))
    described, schema = delta.metadata(), json.loads(delta.schema().to_json())
    schema["fields"][1] |= field or {}
    for number, one in enumerate(schema["fields"] if mapped else ()):
        one["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    protocol: dict[str, Any] = {"minReaderVersion": version[0], "minWriterVersion": version[1]}
    if version[1] == 7:
        both = {"deletionVectors", "columnMapping", "typeWidening-preview", "v2Checkpoint", "timestampNtz"}
        protocol |= {"writerFeatures": features or [], "readerFeatures": [f for f in features or [] if f in both]}
    metadata = {
        "id": described.id, "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
        "partitionColumns": ["place"] if partitioned else [],
        "configuration": described.configuration | (properties or {}),
        "createdTime": described.created_time,
    }  # fmt: skip
    commit = lake.path(TABLE) / "_delta_log" / f"{delta.version() + 1:020}.json"
    commit.write_text("".join(json.dumps(action) + "\n" for action in ({"protocol": protocol}, {"metaData": metadata})))


ASKS: dict[str, dict[str, Any]] = {
    "a CHECK constraint": {"features": ["checkConstraints"], "properties": {"delta.constraints.few": "value < 9"}},
    "a CHECK constraint of an older protocol": {
        "version": (1, 3),
        "properties": {"delta.constraints.few": "value < 9"},
    },
    "a generated column": {
        "features": ["generatedColumns"],
        "field": {"metadata": {"delta.generationExpression": "length(place)"}},
    },
    "a generated column of an older protocol": {
        "version": (1, 4),
        "field": {"metadata": {"delta.generationExpression": "length(place)"}},
    },
    "an identity column": {"features": ["identityColumns"], "field": {"metadata": {"delta.identity.start": 1}}},
    "an identity column of an older protocol": {"version": (1, 6), "field": {"metadata": {"delta.identity.start": 1}}},
    "an invariant": {
        "version": (1, 2),
        "field": {"metadata": {"delta.invariants": '{"expression":{"expression":"x"}}'}},
    },
    "a column that is never null": {"version": (1, 2), "field": {"nullable": False}},
    "column mapping of an older protocol": {
        "version": (2, 5),
        "properties": {"delta.columnMapping.mode": "name"},
        "mapped": True,
    },
    "row tracking": {"features": ["rowTracking", "domainMetadata"]},
    "in-commit timestamps": {"features": ["inCommitTimestamp"]},
    "a feature of tomorrow": {"features": ["tomorrow"]},
    "clustering": {"features": ["clustering", "domainMetadata"]},
    "column defaults": {"features": ["allowColumnDefaults"]},
    "partition columns": {"partitioned": True},
}
ASKS_NOTHING: dict[str, dict[str, Any]] = {
    "the oldest protocol": {"version": (1, 1)},
    "features of an older protocol, unused": {"version": (2, 6)},
    "features, unused": {
        "features": ["appendOnly", "invariants", "checkConstraints", "generatedColumns", "identityColumns"]
    },
    "vectors": {"features": ["deletionVectors", "changeDataFeed"], "properties": {DELETION_VECTORS: "true"}},
}  # fmt: skip
Write = Callable[[FolderStorage], object]
COMMITS: dict[str, Write] = {
    "append": lambda lake: lake.append_rows(None, TABLE, rows(x=9), Txn("app", 9)),
    "replacement": lambda lake: lake.replace_rows(None, TABLE, rows(x=9), None),
    "merge": lambda lake: merge_without_spark(open_table(lake.path(TABLE)), rows(a=9, delete=False), UPSERT, "app", 9),
    "removal": lambda lake: folder_removal.remove_rows(lake.path(TABLE), UP_TO_1),
    "emptying": lambda lake: StagedFiles(lake._table_location(TABLE), []).replace_files(None, Txn("app", 9)),
}


@pytest.mark.parametrize("asked", ASKS)
def test_nothing_is_committed_here_to_a_table_that_asks_more_of_its_writers(lake: FolderStorage, asked: str) -> None:
    lake.append_rows(None, TABLE, rows(a=1, b=2), Txn("app", 0))
    restated(lake, **ASKS[asked])
    before = {path: path.read_bytes() for path in lake.path(TABLE).rglob("*") if path.is_file()}
    assert find_spark_only_feature(open_table(lake.path(TABLE)))
    for commit in COMMITS.values():
        with pytest.raises(LakeError, match="only Spark may write to the table"):
            commit(lake)
    assert {path: path.read_bytes() for path in lake.path(TABLE).rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("asked", ASKS_NOTHING)
def test_a_protocol_s_features_that_the_table_does_not_use_ask_nothing(lake: FolderStorage, asked: str) -> None:
    lake.append_rows(None, TABLE, rows(a=1, b=2), Txn("app", 0))
    restated(lake, **ASKS_NOTHING[asked])
    assert find_spark_only_feature(open_table(lake.path(TABLE))) is None
    for commit in COMMITS.values():
        commit(lake)


@pytest.mark.parametrize("as_struct", ["true", "false"])
@pytest.mark.parametrize("write", [*COMMITS, "purge of vectors"])
def test_a_table_whose_checkpoints_have_no_statistics_as_json_is_written_to(
    lake: FolderStorage, write: str, as_struct: str
) -> None:
    lake.set_property(NO_SPARK, TABLE, "delta.checkpoint.writeStatsAsJson", "false")
    lake.set_property(NO_SPARK, TABLE, "delta.checkpoint.writeStatsAsStruct", as_struct)
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true")
    for number, (one, other) in enumerate(("ab", "cd")):
        lake.append_rows(None, TABLE, rows(**{one: number, other: number + 1}), Txn("app", number))
    gone = rows(d=0, delete=True)
    assert merge_without_spark(open_table(lake.path(TABLE)), gone, UPSERT, "marks", 1)
    open_table(lake.path(TABLE)).create_checkpoint()
    expected = {"append": {"a": 0, "b": 1, "c": 1, "x": 9}, "replacement": {"x": 9}, "merge": {"a": 9, "b": 1, "c": 1},
                "removal": {}, "emptying": {}, "purge of vectors": {"a": 0, "b": 1, "c": 1}}  # fmt: skip
    assert lake.find_missing_files(None, TABLE) == []
    (COMMITS | {"purge of vectors": lambda lake: lake.purge_deletion_vectors(TABLE)})[write](lake)
    assert held(lake) == expected[write]
    assert lake.count_rows(NO_SPARK, TABLE, UP_TO_1) == sum(value <= 1 for value in expected[write].values())


def test_what_comes_between_writing_and_the_commit_is_asked_for_again(lake: FolderStorage) -> None:
    with lake.stage_rows(None, TABLE, rows(a=1)) as staged:
        restated(lake, **ASKS["a CHECK constraint"])
        with pytest.raises(LakeError, match=r"the table feature checkConstraints in use, .* only Spark may write"):
            staged.commit_rows(Txn("app", 0))
    assert not [*lake.path(TABLE).glob("*.parquet")]


def held(lake: FolderStorage) -> dict[str, int]:
    found = pa.table(DeltaTable(lake.path(TABLE)).scan())
    assert found.num_rows == len({*found["place"].to_pylist()})
    return dict(zip(found["place"].to_pylist(), found["value"].to_pylist(), strict=True))


@pytest.fixture(params=[False, True], ids=["plain", "fed"])
def switched_off(lake: FolderStorage, request: pytest.FixtureRequest) -> FolderStorage:
    """A table with marked rows in each of four files, for which marking was switched off: it holds b, d, f, h."""
    if request.param:
        lake.set_property(NO_SPARK, TABLE, CHANGE_FEED, "true")
    for number, (one, other) in enumerate(("ab", "cd", "ef", "gh")):
        lake.append_rows(None, TABLE, rows(**{one: number, other: number}), Txn("app", number))
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true")
    gone = rows(a=0, c=0, e=0, g=0, delete=True)
    assert merge_without_spark(open_table(lake.path(TABLE)), gone, UPSERT, "marks", 1)
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "false")
    assert [len(file.deleted_rows) for file in list_data_files(open_table(lake.path(TABLE)))] == [1] * 4
    return lake


def test_compaction_of_a_table_whose_marking_was_switched_off_leaves_marked_rows_gone(
    switched_off: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had brought them back, and had left the old files there beside: more at each time."""
    monkeypatch.setattr(tiers, "_ENOUGH", (2, 2, 2))
    lake, before = switched_off, held(switched_off)
    assert lake.compact_table(NO_SPARK, TABLE) is not None
    assert held(lake) == before == {"b": 0, "d": 1, "f": 2, "h": 3}
    assert len(list_data_files(open_table(lake.path(TABLE)))) == 1
    assert lake.compact_table(NO_SPARK, TABLE) is None


@pytest.mark.parametrize("write", ["append", "replacement", "emptying", "removal"])
def test_other_commits_to_a_table_whose_marking_was_switched_off_leave_marked_rows_gone(
    switched_off: FolderStorage, write: str
) -> None:
    expected = {
        "append": {"b": 0, "d": 1, "f": 2, "h": 3, "x": 9},
        "replacement": {"x": 9},
        "emptying": {},
        "removal": {"f": 2, "h": 3},
    }
    COMMITS[write](switched_off)
    assert held(switched_off) == expected[write]


def test_a_merge_into_a_table_whose_marking_was_switched_off_makes_no_vectors(switched_off: FolderStorage) -> None:
    lake = switched_off
    lake.merge_rows(NO_SPARK, TABLE, rows(b=7, a=8, delete=False), UPSERT, Txn("merge", 0))
    assert held(lake) == {"a": 8, "b": 7, "d": 1, "f": 2, "h": 3}
    assert sum(len(file.deleted_rows) for file in list_data_files(open_table(lake.path(TABLE)))) == 3, (
        "of the file that had b, none is left"
    )


def test_rows_that_are_marked_are_not_counted_as_chosen(switched_off: FolderStorage) -> None:
    assert switched_off.count_rows(NO_SPARK, TABLE, UP_TO_1) == 2  # of a to d, which are at most 1


def test_a_vector_file_that_is_gone_is_named_as_lost(switched_off: FolderStorage) -> None:
    [vector] = switched_off.path(TABLE).glob("deletion_vector_*.bin")
    assert switched_off.find_missing_files(None, TABLE) == []
    vector.unlink()
    assert switched_off.find_missing_files(None, TABLE) == [vector.name]


def test_every_removal_names_the_file_with_its_vector(
    switched_off: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else readers take the file for one that is still there."""
    monkeypatch.setattr(tiers, "_ENOUGH", (2, 2, 2))
    present = {file.log_key for file in list_data_files(open_table(switched_off.path(TABLE)))}
    switched_off.compact_table(NO_SPARK, TABLE)
    newest = max((switched_off.path(TABLE) / "_delta_log").glob("*.json"))
    removes = [json.loads(line).get("remove") for line in newest.read_text(encoding="utf-8").splitlines()]
    vectors = [one["deletionVector"] for one in removes if one is not None]
    assert len(vectors) == len(present) == 4


# -- merges that change nothing


def test_a_merge_that_changes_no_row_moves_none_so_that_the_change_feed_tells_nothing(lake: FolderStorage) -> None:
    """Many small files would be put together by the way, as rows that went and came."""
    lake.set_property(NO_SPARK, TABLE, CHANGE_FEED, "true")
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true")
    for number in range(20):
        lake.append_rows(None, TABLE, rows(**{f"k{number}": number}), Txn("app", number))
    first = open_table(lake.path(TABLE)).version() + 1
    assert merge_without_spark(open_table(lake.path(TABLE)), rows(other=0, delete=True), UPSERT, "marks", 1)
    delta = open_table(lake.path(TABLE))
    assert (delta.version(), delta.transaction_version("marks")) == (first, 1)
    assert pa.table(delta.load_cdf(starting_version=first, allow_out_of_range=True)).num_rows == 0
    assert merge_without_spark(open_table(lake.path(TABLE)), rows(k3=7, delete=False), UPSERT, "marks", 2)
    told = pa.table(open_table(lake.path(TABLE)).load_cdf(starting_version=first + 1))
    changes = zip(told["_change_type"].to_pylist(), told["place"].to_pylist(), told["value"].to_pylist(), strict=True)
    assert sorted(changes) == [("update_postimage", "k3", 7), ("update_preimage", "k3", 3)]
    assert len(list_data_files(open_table(lake.path(TABLE)))) < 20, "where rows change, small files are put together"


# -- the log's entry


def lose_answers(patch: pytest.MonkeyPatch) -> list[Path]:
    """As NFS does: what asks again for a link that was made is told that it exists."""
    real, lost = os.link, list[Path]()

    def link(source: Path, target: Path) -> None:
        real(source, target)
        lost.append(Path(target))
        raise FileExistsError(17, "File exists", str(target))

    patch.setattr(os, "link", link)
    return lost


@pytest.mark.parametrize("write", COMMITS)
@pytest.mark.parametrize("marks", ["true", "false"])
def test_a_commit_whose_answer_is_lost_is_there_once_with_its_files(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch, write: str, marks: str
) -> None:
    lake.append_rows(None, TABLE, rows(a=1, b=2), Txn("app", 0))
    lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, marks)
    version = open_table(lake.path(TABLE)).version()
    lost = lose_answers(monkeypatch)
    COMMITS[write](lake)
    assert [path.name for path in lost] == [f"{version + 1:020}.json"]
    expected = {"append": {"a": 1, "b": 2, "x": 9}, "replacement": {"x": 9}, "merge": {"a": 9, "b": 2},
                "removal": {"b": 2}, "emptying": {}}  # fmt: skip
    assert held(lake) == expected[write]
    assert lake.find_missing_files(None, TABLE) == []


def test_an_entry_of_somebody_else_is_no_lost_answer(lake: FolderStorage) -> None:
    before = open_table(lake.path(TABLE))
    lake.append_rows(None, TABLE, rows(a=1), Txn("app", 0))
    assert not merge_without_spark(before, rows(a=2, delete=False), UPSERT, "late", 1)
    assert held(lake) == {"a": 1}
    assert len([*lake.path(TABLE).glob("*.parquet")]) == 1


def test_a_home_below_a_folder_of_that_name_is_no_task_s(tmp_path: Path) -> None:
    lake = FolderStorage(Settings(home=tmp_path / "_temporary" / "home"))
    DeltaTable.create(lake.path(TABLE), SCHEMA, configuration={APPEND_ONLY: "true"})
    lake.append_rows(None, TABLE, rows(a=1), Txn("app", 0))
    lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(timedelta(seconds=-7200)))
    assert held(lake) == {"a": 1}
    assert lake.find_missing_files(None, TABLE) == []
