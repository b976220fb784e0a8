"""Rows combined with those that a folder's table has of their keys: sums are right whoever else commits."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.settings.model import Settings
from support.lakes import limit

TABLE = "gold.sums"
SCHEMA = pa.schema([("name", pa.string()), ("at", pa.int64()), ("sum", pa.int64())])
UPSERT = Upsert(("name", "at"), ("sum",))
NO_SPARK = cast("Any", None)
Sums = Counter[tuple[str, int]]


def made(home: Path, patch: pytest.MonkeyPatch, *, marks: bool) -> FolderStorage:
    """A table whose rows are marked, or written anew, as they are replaced."""
    limit(patch, rewritten_rows=-1 if marks else 1 << 20)
    storage = FolderStorage(Settings(home=home))
    delta = DeltaTable.create(storage.path(TABLE), SCHEMA)
    delta.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    delta.alter.set_table_properties({DELETION_VECTORS: "true"})
    return storage


def rows(sums: Sums) -> pa.Table:
    """As gold has them: texts by numbers."""
    columns = zip(*((name, at, count) for (name, at), count in sums.items()), strict=True)
    table = pa.table([pa.array(list(c), t) for c, t in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA)
    return table.set_column(0, "name", table["name"].dictionary_encode())


def added(given: pa.Table, held: pa.Table) -> pa.Table:
    both = pa.concat_tables([given.cast(SCHEMA), held])
    summed = both.group_by(["name", "at"], use_threads=False).aggregate([("sum", "sum")])
    return summed.rename_columns(SCHEMA.names).sort_by([("sum", "descending")])


def held(storage: FolderStorage) -> Sums:
    found = pa.table(DeltaTable(storage.path(TABLE)).scan()).cast(SCHEMA).to_pylist()
    assert len({(row["name"], row["at"]) for row in found}) == len(found)
    return Counter({(row["name"], row["at"]): row["sum"] for row in found})


@pytest.mark.parametrize("marks", [True, False])
def test_sums_of_many_batches_are_those_of_a_counter_and_a_repeated_batch_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: bool
) -> None:
    storage, rnd, truth = made(tmp_path, monkeypatch, marks=marks), random.Random(5), Sums()
    for number in range(20):
        size = rnd.choice([1, 10, 300])
        batch = Sums({(f"k{rnd.randrange(9)}", rnd.randrange(60)): rnd.randrange(1, 99) for _ in range(size)})
        for _ in range(1 + number % 2):
            storage.combine_and_merge_rows(NO_SPARK, TABLE, rows(batch), added, UPSERT, Txn("app", number))
        truth.update(batch)
    assert held(storage) == truth


def test_what_another_commits_between_reading_and_marking_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OPTIMIZE, which moves rows, and one who does not wait for his turn."""
    storage = made(tmp_path, monkeypatch, marks=True)
    for first in range(0, 90, 30):
        batch = rows(Sums({("k", at): 1 for at in range(first, first + 30)}))
        storage.combine_and_merge_rows(NO_SPARK, TABLE, batch, added, UPSERT, Txn("app", first))
    files, seen = len(DeltaTable(storage.path(TABLE)).get_add_actions()), list[int]()

    def beside(given: pa.Table, found: pa.Table) -> pa.Table:
        seen.append(found.num_rows)
        if len(seen) == 1:
            DeltaTable(storage.path(TABLE)).optimize.compact()
        if len(seen) == 2:
            other = pa.table({"name": ["k"], "at": [90], "sum": [5]}, SCHEMA)
            write_deltalake(storage.path(TABLE), other, mode="append")
        return added(given, found)

    last = rows(Sums({("k", at): 2 for at in (0, 31, 62, 90)}))
    storage.combine_and_merge_rows(NO_SPARK, TABLE, last, beside, UPSERT, Txn("app", 99))
    assert (files, seen) == (3, [3, 3, 4])
    assert held(storage) == Sums({("k", at): 1 for at in range(90)}) + Sums(
        {("k", 0): 2, ("k", 31): 2, ("k", 62): 2, ("k", 90): 7}
    )
