"""Files that tasks write for Delta: every row as it was, and statistics that never leave one out."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import eq
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from sessionlake.delta.folders.parquet import DataFileWriter, _move_spark_file_to_table
from sessionlake.delta.folders.reader import FolderReader
from sessionlake.delta.folders.staging import StagedFiles, TableLocation
from sessionlake.delta.storage.txn import Txn

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("text", pa.string()), ("number", pa.int64()), ("at", TIME), ("value", pa.binary())])
INDEXED = ("text", "number", "at")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
EARLY = datetime(68, 3, 4, tzinfo=UTC)


def rows(rnd: random.Random, count: int) -> list[dict[str, Any]]:
    texts = [None, "", "é\U0001f600", "z" * 300, "z" * 256 + "\U0010ffff" * 2 + "z", "\U0010ffff" * 300, "plain"]
    return [
        {
            "text": rnd.choice(texts),
            "number": rnd.choice([None, -(2**63), 0, 2**63 - 1, rnd.randrange(100)]),
            "at": rnd.choice([None, EARLY, NOON + timedelta(microseconds=rnd.randrange(10**9))]),
            "value": rnd.choice([None, b"", bytes([rnd.randrange(256)])]),
        }
        for _ in range(count)
    ]


def batches(rnd: random.Random, made: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    cuts = sorted({0, *(rnd.randrange(len(made) + 1) for _ in range(3)), len(made)})
    plain = [pa.RecordBatch.from_pylist(made[a:b], SCHEMA) for a, b in pairwise(cuts)]
    return [with_dictionary(rnd, batch) if rnd.random() < 0.5 else batch for batch in plain]


def with_dictionary(rnd: random.Random, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Its texts as codes of a dictionary that knows others besides."""
    known = [*dict.fromkeys(filter(None, batch["text"].to_pylist())), "other", ""]
    rnd.shuffle(known)
    codes = [None if text is None else known.index(text) for text in batch["text"].to_pylist()]
    texts = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(known, pa.string()))
    return batch.set_column(0, "text", texts)


def assert_bounds_hold(stats: str, made: list[dict[str, Any]]) -> None:
    """Delta leaves out a file whose bounds exclude what is asked for: no row may lie beyond them."""
    written = json.loads(stats)
    assert written["numRecords"] == len(made)
    for name in INDEXED:
        values = [row[name] for row in made if row[name] is not None]
        assert written["nullCount"][name] == len(made) - len(values)
        least, greatest = written["minValues"].get(name), written["maxValues"].get(name)
        if name == "at" and least is not None:
            least, greatest = datetime.fromisoformat(least), datetime.fromisoformat(greatest)
        assert (least is None) is (greatest is None) is (not values)
        if name == "text" and values:
            assert least == min(values)[:256]
            assert greatest >= max(values)
        elif values:
            assert (least, greatest) == (min(values), max(values))


@pytest.mark.parametrize("seed", range(20))
def test_a_task_s_rows_are_in_one_file_with_bounds_that_hold(seed: int, tmp_path: Path) -> None:
    rnd = random.Random(seed)
    made = rows(rnd, rnd.randrange(1, 40))
    [written] = DataFileWriter(str(tmp_path), SCHEMA, INDEXED)(batches(rnd, made))
    [file] = written.to_pylist()
    found = pq.read_table(tmp_path / file["path"])
    assert found.schema == SCHEMA
    assert found.to_pylist() == made
    assert file["size"] == (tmp_path / file["path"]).stat().st_size
    assert_bounds_hold(file["stats"], made)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_of_spark_s_is_taken_over_with_what_its_footer_tells(seed: int, tmp_path: Path) -> None:
    rnd = random.Random(seed)
    made = rows(rnd, rnd.randrange(1, 40))
    (tmp_path / "staged").mkdir()
    pq.write_table(
        pa.Table.from_pylist(made, SCHEMA), tmp_path / "staged" / "x.parquet", row_group_size=rnd.randrange(1, 10)
    )
    file = _move_spark_file_to_table(tmp_path / "staged" / "x.parquet", tmp_path, INDEXED)
    assert pq.read_table(tmp_path / file.path).to_pylist() == made
    assert_bounds_hold(file.stats, made)


@pytest.mark.parametrize("ms", [1_790_000_000_000_000, -(10**15)])
def test_a_time_that_no_calendar_here_has_leaves_a_file_without_bounds(tmp_path: Path, ms: int) -> None:
    """As of a producer that takes microseconds for milliseconds."""
    times = pa.array([0, ms * 1000], pa.int64()).cast(TIME)
    made = pa.table({"text": ["a", "b"], "number": [1, 2], "at": times, "value": [b"", b""]}, SCHEMA)
    [written] = DataFileWriter(str(tmp_path), SCHEMA, INDEXED)(made.to_batches())
    pq.write_table(made, tmp_path / "x.parquet")
    for stats in (
        written["stats"][0].as_py(),
        _move_spark_file_to_table(tmp_path / "x.parquet", tmp_path, INDEXED).stats,
    ):
        assert json.loads(stats) == {"numRecords": 2}


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    empty = pa.RecordBatch.from_pylist([], SCHEMA)
    assert list(DataFileWriter(str(tmp_path), SCHEMA, INDEXED)([empty])) == []
    assert list(tmp_path.iterdir()) == []


def test_what_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Any:
        yield pa.RecordBatch.from_pylist(rows(random.Random(1), 5), SCHEMA)
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        list(DataFileWriter(str(tmp_path), SCHEMA, INDEXED)(failing()))
    assert list(tmp_path.iterdir()) == []


def test_columns_are_the_table_s_in_its_order_and_absent_ones_null(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"number": 1, "text": "a"}], pa.schema([("number", pa.int32()), ("text", "string")])
    )
    [written] = DataFileWriter(str(tmp_path), SCHEMA, INDEXED)([batch])
    found = pq.read_table(tmp_path / written.to_pylist()[0]["path"])
    assert found.schema.names == SCHEMA.names
    assert found.to_pylist() == [{"text": "a", "number": 1, "at": None, "value": None}]


def test_a_file_whose_footer_lacks_a_bound_tells_none(tmp_path: Path) -> None:
    (tmp_path / "staged").mkdir()
    made = pa.table(
        {"text": ["a", "z" * 5_000], "number": [1, 2], "at": [NOON, NOON], "value": [b"", b""]}, schema=SCHEMA
    )
    pq.write_table(made, tmp_path / "staged" / "x.parquet", row_group_size=1, write_statistics=["number"])
    file = _move_spark_file_to_table(tmp_path / "staged" / "x.parquet", tmp_path, INDEXED)
    assert json.loads(file.stats) == {"numRecords": 2}


@pytest.mark.parametrize("asked", [{"text": "b"}, {"text": "z" * 300}, {"at": NOON}, {"at": EARLY}])
def test_rows_are_found_beside_long_texts_and_early_times(tmp_path: Path, asked: dict[str, Any]) -> None:
    DeltaTable.create(tmp_path, SCHEMA, configuration={"delta.dataSkippingStatsColumns": ",".join(INDEXED)})
    made = pa.table(
        {"text": ["b", "z" * 300], "number": [1, 2], "at": [NOON, EARLY], "value": [b"", b""]}, schema=SCHEMA
    )
    files = DataFileWriter(str(tmp_path), SCHEMA, INDEXED).write_files(made.to_batches())
    StagedFiles(TableLocation(tmp_path, "t", nullcontext), files).commit_rows(Txn("a", 0))
    [(name, value)] = asked.items()
    found = FolderReader(lambda _: tmp_path).read_arrow_table("t", (name, eq, value), columns=["number"])
    assert found.num_rows == 1
