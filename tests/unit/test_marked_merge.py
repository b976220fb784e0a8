"""MERGE by marking: the same rows as in a dictionary, whatever came before, read back by delta-rs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake

from sessionlake.delta.folders import commits as folder_commits
from sessionlake.delta.folders import deletion_vectors, table_files
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.rows_by_key import KeyIndexCache, MergeRowLookup
from sessionlake.delta.folders.table_files import list_data_files
from sessionlake.delta.schemas.properties import APPEND_ONLY, CHANGE_FEED
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.protocol.names import DELETE, WRITTEN
from support.seeds import seeds

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("value", pa.int64()),
        ("kept", pa.float64()),
        ("other", pa.string()),
    ]
)
UPSERT = Upsert(("key", "at"), ("value",), optional_columns=("kept",), deletes=True)
Rows = dict[tuple[str, int], list[Any]]


def made(folder: Path, keys: int) -> tuple[DeltaTable, Rows]:
    """A table of several files that may have deletion vectors, and its rows."""
    rows: Rows = {(f"k{i % 7}", i): [i, float(i), f"o{i}"] for i in range(keys)}
    listed = [(key, at, *values) for (key, at), values in rows.items()]
    for first in range(0, keys, max(keys // 3, 1)):
        columns = zip(*listed[first : first + max(keys // 3, 1)], strict=True)
        table = pa.table([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        write_deltalake(folder, table, mode="append")
    delta = DeltaTable(folder)
    delta.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    return DeltaTable(folder), rows


def source(rnd: random.Random, keys: int, many: int, number: int) -> list[tuple[Any, ...]]:
    chosen = rnd.sample(range(keys + keys // 5), min(many, keys))
    return [(f"k{i % 7}", i, number, rnd.random(), [rnd.random() < 0.5], rnd.random() < 0.2) for i in chosen]


def as_table(rows: list[tuple[Any, ...]]) -> pa.Table:
    names = ("key", "at", "value", "kept", WRITTEN, DELETE)
    types = [*(SCHEMA.field(name).type for name in names[:4]), pa.list_(pa.bool_()), pa.bool_()]
    return pa.table([pa.array(list(c), t) for c, t in zip(zip(*rows, strict=True), types, strict=True)], list(names))


def apply(held: Rows, rows: list[tuple[Any, ...]]) -> None:
    for key, at, value, kept, written, delete in rows:
        if delete:
            held.pop((key, at), None)
        elif (key, at) in held:
            old = held[key, at]
            held[key, at] = [value, kept if written[0] else old[1], old[2]]
        else:
            held[key, at] = [value, kept, None]


def read(folder: Path) -> Rows:
    found = pa.table(DeltaTable(folder).scan()).cast(SCHEMA)
    at = found["at"].cast(pa.int64()).to_pylist()
    values = zip(*(found[name].to_pylist() for name in ("value", "kept", "other")), strict=True)
    rows = {(key, t): list(v) for key, t, v in zip(found["key"].to_pylist(), at, values, strict=True)}
    assert len(rows) == found.num_rows
    return rows


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_random_merges_leave_the_rows_that_a_dictionary_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever is put together meanwhile: small files, and the log."""
    monkeypatch.setattr(folder_commits, "CHECKPOINT_INTERVAL", 7)
    rnd = random.Random(seed)
    keys = rnd.choice([3, 50, 5_000])
    _, held = made(tmp_path, keys)
    lookup = MergeRowLookup(KeyIndexCache(rnd.choice([0, 20_000, 1 << 20])))
    for number in range(rnd.choice([3, 40])):
        rows = source(rnd, keys, rnd.choice([1, 5, keys]) if number % 10 else keys, number)
        assert merge_without_spark(DeltaTable(tmp_path), as_table(rows), UPSERT, "app", number, lookup)
        apply(held, rows)
    assert read(tmp_path) == held
    delta = DeltaTable(tmp_path)
    assert delta.transaction_version("app") == number
    assert len(delta.get_add_actions()) < 40, "small files are put together"


@pytest.mark.parametrize("seed", range(4))
def test_the_change_feed_tells_what_each_merge_has_changed(tmp_path: Path, seed: int) -> None:
    rnd = random.Random(seed)
    keys = rnd.choice([3, 50, 2_000])
    delta, held = made(tmp_path, keys)
    delta.alter.set_table_properties({CHANGE_FEED: "true"})
    first = DeltaTable(tmp_path).version() + 1
    for number in range(20):
        rows = source(rnd, keys, rnd.choice([1, 5, keys]), number)
        assert merge_without_spark(DeltaTable(tmp_path), as_table(rows), UPSERT, "app", number)
        before = dict(held)
        apply(held, rows)
        told: dict[str, Rows] = {"delete": {}, "update_preimage": {}, "update_postimage": {}, "insert": {}}
        for change, at, key, *values in fed(tmp_path, first + number):
            assert (key, at) not in told[change]
            told[change][key, at] = values
        assert told["insert"] == {key: held[key] for key in held.keys() - before.keys()}
        assert told["delete"] == {key: before[key] for key in before.keys() - held.keys()}
        touched = {(key, at) for key, at, *_ in rows} & before.keys() & held.keys()
        assert told["update_preimage"] == {key: before[key] for key in touched}
        assert told["update_postimage"] == {key: held[key] for key in touched}
    assert read(tmp_path) == held


def fed(folder: Path, version: int) -> list[list[Any]]:
    """The file of changes that a commit names."""
    lines = (folder / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8").splitlines()
    named = [action["cdc"] for action in map(json.loads, lines) if "cdc" in action]
    rows = pa.concat_tables([pq.read_table(folder / one["path"]) for one in named]) if named else None
    if rows is None:
        return []
    assert [(folder / one["path"]).stat().st_size for one in named] == [one["size"] for one in named]
    rows = rows.set_column(rows.column_names.index("at"), "at", rows["at"].cast(pa.int64()))
    return [list(row) for row in zip(*(rows[n].to_pylist() for n in _FED), strict=True)]


_FED = ("_change_type", "at", "key", "value", "kept", "other")


@pytest.mark.parametrize("name", ["a+b", "a=b @c", "d'(é),&;:!*#?", "link"])
def test_rows_stay_gone_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    if name == "link":
        (tmp_path / "real").mkdir()
        folder.symlink_to(tmp_path / "real")
    folder.mkdir(exist_ok=True)
    _, held = made(folder, 30)
    for number in range(3):
        rows = [(f"k{i % 7}", i, number, 1.0, [True], False) for i in range(number, 20, 4)]
        assert merge_without_spark(DeltaTable(folder), as_table(rows), UPSERT, "app", number)
        apply(held, rows)
    assert read(folder) == held


def test_a_vector_that_is_not_what_the_log_says_stops_the_merge(tmp_path: Path) -> None:
    made(tmp_path, 9)
    rows = as_table([("k0", 0, 5, 1.0, [True], False)])
    assert merge_without_spark(DeltaTable(tmp_path), rows, UPSERT, "app", 1)
    newest = max((tmp_path / "_delta_log").glob("*.json"))
    newest.write_text(newest.read_text(encoding="utf-8").replace('"cardinality":1', '"cardinality":2'), "utf-8")
    with pytest.raises(LakeError, match=r"/part-.*: its deletion vector marks 1 rows as deleted, but Delta's log says"):
        merge_without_spark(DeltaTable(tmp_path), rows, UPSERT, "app", 2)


def test_many_small_files_are_put_together_some_at_a_time(tmp_path: Path) -> None:
    made(tmp_path, 3)
    for n in range(40):
        added = {"key": "new", "at": datetime.fromtimestamp(n, UTC)}
        write_deltalake(tmp_path, pa.Table.from_pylist([added], SCHEMA), mode="append")
    before = len(DeltaTable(tmp_path).get_add_actions())
    assert merge_without_spark(DeltaTable(tmp_path), as_table([("x", 0, 5, 1.0, [True], False)]), UPSERT, "app", 1)
    assert len(DeltaTable(tmp_path).get_add_actions()) == before - 16 + 1
    assert len(read(tmp_path)) == 3 + 40 + 1


def test_of_a_table_that_only_grows_no_file_is_removed(tmp_path: Path) -> None:
    for n in range(20):
        write_deltalake(tmp_path, pa.table({"key": [n]}), mode="append", configuration={APPEND_ONLY: "true"})
    assert merge_without_spark(
        DeltaTable(tmp_path), pa.table({"key": [3, 99]}), Upsert(("key",), (), updates=False), "app", 1
    )
    assert len(DeltaTable(tmp_path).get_add_actions()) == 21
    assert sorted(pa.table(DeltaTable(tmp_path).scan())["key"].to_pylist()) == [*range(20), 99]


def test_a_column_that_is_younger_than_a_file_stays_null_where_it_is_not_written(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"key": ["a", "b"]}))
    DeltaTable(tmp_path).alter.add_columns(Field("kept", "long"))
    DeltaTable(tmp_path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    rows = pa.table({"key": ["a", "b"], "kept": [7, 8], WRITTEN: [[True], [False]]})
    assert merge_without_spark(DeltaTable(tmp_path), rows, Upsert(("key",), (), optional_columns=("kept",)), "app", 1)
    found = pa.table(DeltaTable(tmp_path).scan())
    assert dict(zip(found["key"].to_pylist(), found["kept"].to_pylist(), strict=True)) == {"a": 7, "b": None}


@pytest.mark.parametrize(
    "rows",
    [
        *(range(n) for n in (1, 4_096, 4_097, 65_536, 65_537)),
        [0, 65_535, 65_536, 131_071, 131_072, 199_999],
        range(65_536, 131_072),
        range(1, 200_000, 2),
    ],
)
def test_vectors_say_the_same_rows_to_another_reader_at_the_limits_of_their_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Sequence[int]
) -> None:
    write_deltalake(tmp_path, pa.table({"row": range(200_000)}))
    DeltaTable(tmp_path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    source = pa.table({"row": rows, DELETE: [True] * len(rows)})
    assert merge_without_spark(DeltaTable(tmp_path), source, Upsert(("row",), (), deletes=True), "app", 1)
    left = pa.table(DeltaTable(tmp_path).scan())["row"].to_pylist()
    assert left == sorted({*range(200_000)} - {*rows})
    for _ in range(2):
        assert [
            file.deleted_rows.tolist() for file in list_data_files(DeltaTable(tmp_path)) if len(file.deleted_rows)
        ] == [[*rows]]
        monkeypatch.setattr(table_files, "read_deletion_vector", lambda *_: None)  # as of a vector that others wrote


def test_the_vectors_of_a_commit_stand_in_one_file(tmp_path: Path) -> None:
    _, held = made(tmp_path, 30)
    for number, rows in enumerate([range(30), range(0, 30, 4)]):
        changed = [(f"k{i % 7}", i, number, 1.0, [True], False) for i in rows if number or i % 3]
        assert merge_without_spark(DeltaTable(tmp_path), as_table(changed), UPSERT, "app", number)
        apply(held, changed)
        assert len([*tmp_path.glob("deletion_vector_*.bin")]) == number + 1
    marked = [file for file in list_data_files(DeltaTable(tmp_path)) if len(file.deleted_rows)]
    named = [file.add["deletionVector"] for file in marked]
    assert len({(one["pathOrInlineDv"], one["offset"]) for one in named}) == len(named) > 2
    assert read(tmp_path) == held


def test_where_another_commit_has_come_between_nothing_is_written(tmp_path: Path) -> None:
    before, held = made(tmp_path, 30)
    rows = [("k0", 0, 5, 1.0, [True], False)]
    added = {"key": "new", "at": datetime.fromtimestamp(9, UTC)}
    write_deltalake(tmp_path, pa.Table.from_pylist([added], SCHEMA), mode="append")
    files = {path.name for path in tmp_path.iterdir()}
    assert not merge_without_spark(before, as_table(rows), UPSERT, "app", 1)
    assert {path.name for path in tmp_path.iterdir()} == files
    assert merge_without_spark(DeltaTable(tmp_path), as_table(rows), UPSERT, "app", 1)
    apply(held, rows)
    assert read(tmp_path) == held | {("new", 9_000_000): [None, None, None]}


def test_rows_that_are_only_inserted_or_only_updated(tmp_path: Path) -> None:
    _, held = made(tmp_path, 10)
    both = pa.table({"key": ["k0", "x"], "at": pa.array([0, 1], SCHEMA.field("at").type), "value": [7, 8]})
    assert merge_without_spark(DeltaTable(tmp_path), both, Upsert(("key", "at"), ("value",), inserts=False), "app", 1)
    held["k0", 0][0] = 7
    assert read(tmp_path) == held
    assert merge_without_spark(DeltaTable(tmp_path), both, Upsert(("key", "at"), ("value",), updates=False), "app", 2)
    assert read(tmp_path) == held | {("x", 1): [8, None, None]}


def test_the_commit_says_how_many_rows_it_touched(tmp_path: Path) -> None:
    made(tmp_path, 10)
    rows = [("k0", 0, 5, 1.0, [True], False), ("k1", 1, 5, 1.0, [True], True), ("x", 1, 5, 1.0, [True], False)]
    merge_without_spark(DeltaTable(tmp_path), as_table(rows), UPSERT, "app", 1)
    newest = max((tmp_path / "_delta_log").glob("*.json"))
    info = json.loads(newest.read_text(encoding="utf-8").splitlines()[0])["commitInfo"]
    assert info["operationMetrics"] == {
        "numTargetRowsInserted": "1",
        "numTargetRowsUpdated": "1",
        "numTargetRowsDeleted": "1",
    }


def test_names_of_files_are_spelt_as_the_protocol_says() -> None:
    """ZeroMQ's base 85 has an example of its own: https://rfc.zeromq.org/spec/32/."""
    assert deletion_vectors._encode_z85(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"
