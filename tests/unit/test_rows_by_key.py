"""Rows found by their keys: where a dictionary says that they are, whatever is known of the files already."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sessionlake.delta.folders import file_keys, file_rows, key_index, rows_by_key
from sessionlake.delta.folders.file_rows import ParquetFooter, read_rows
from sessionlake.delta.folders.key_index import KeyIndex, SearchKeys
from sessionlake.delta.folders.rows_by_key import KeyIndexCache, MergeRowLookup
from sessionlake.delta.folders.table_files import TableFile
from sessionlake.delta.storage.reading import TooLargeError
from sessionlake.errors import LakeError

KEYS = ("topic", "row", "at")
SCHEMA = pa.schema(
    [("topic", pa.string()), ("row", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())]
)
GROUP = 100  # rows of a row group
Key = tuple[str | None, str, int]


def table(keys: list[Key]) -> pa.Table:
    topics, rows, times = (list(column) for column in zip(*keys, strict=True))
    columns = [pa.array(topics), pa.array(rows), pa.array(times, SCHEMA.field("at").type), range(len(keys))]
    return pa.table([pa.array(c, t) for c, t in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA)


def random_keys(rnd: random.Random, many: int) -> list[Key]:
    """Different ones, of few topics, some rows and many times."""
    every = [(f"t{i % 3}", f"r{i % 41}", i // 123) for i in range(2 * many)]
    return rnd.sample(every, many)


def file(folder: Path, keys: list[Key], gone: tuple[int, ...] = (), **stats: Any) -> TableFile:
    folder.mkdir(exist_ok=True)
    name = f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(table(keys), folder / name, row_group_size=GROUP)
    return TableFile(folder, {"path": name}, {"numRecords": len(keys)} | stats, np.array(gone, np.int64))


def places(indexes: KeyIndexCache, files: list[TableFile], asked: list[Key]) -> dict[Key, tuple[str, int]]:
    found = indexes.find_rows(files, table(asked), KEYS, SCHEMA)
    assert all((np.diff(one.rows) > 0).all() for one in found)
    pairs = [
        (asked[s], (one.file.full_path.name, r)) for one in found for r, s in zip(one.rows, one.key_places, strict=True)
    ]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize("seed", range(4))
def test_an_index_finds_the_rows_of_keys_however_many_numbers_a_key_takes(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rnd = random.Random(seed)
    monkeypatch.setattr(key_index, "_WIDEST", rnd.choice([2, 100, 1 << 62]))
    held: list[Key] = [*random_keys(rnd, 300), (None, "r1", 1)]
    rnd.shuffle(held)
    asked = random_keys(rnd, 200)
    columns = table(held).select(KEYS)
    if seed % 2:
        columns = columns.set_column(1, "row", columns["row"].dictionary_encode())
    rows, source = KeyIndex.from_rows(columns, SCHEMA).find_row_and_key_numbers(
        SearchKeys.from_rows(table(asked), KEYS, SCHEMA)
    )
    assert [(held[row], row) for row in rows] == sorted(
        ((key, held.index(key)) for key in asked if key in held), key=lambda pair: pair[1]
    )
    assert [asked[place] for place in source] == [held[row] for row in rows]


def test_every_row_of_a_key_is_found_that_is_there_more_than_once() -> None:
    held = [("t", "r", 1), ("t", "s", 1), ("t", "r", 1)]
    rows, source = KeyIndex.from_rows(table(held).select(KEYS), SCHEMA).find_row_and_key_numbers(
        SearchKeys.from_rows(table([("t", "r", 1)]), KEYS, SCHEMA)
    )
    assert (rows.tolist(), source.tolist()) == ([0, 2], [0, 0])


@pytest.mark.parametrize("most", [0, 5_000, 1 << 20])
@pytest.mark.parametrize("large", [0, 100, 1 << 18])
def test_rows_are_found_the_same_whatever_of_the_keys_fits_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, large: int
) -> None:
    """And whether it is whole keys, or what rows beside each other have in common."""
    monkeypatch.setattr(file_keys, "_LARGE", large)
    monkeypatch.setattr(file_keys, "_LONG", 2)
    rnd = random.Random(7)
    keys = sorted(random_keys(rnd, 1_000)) if large else random_keys(rnd, 1_000)

    files = [
        file(tmp_path, keys[:350], gone=(0, 99, 100, 349)),
        file(tmp_path, keys[350:360]),
        file(tmp_path, keys[360:]),
    ]
    there = {key: ("0.parquet", i) for i, key in enumerate(keys[:350]) if i not in (0, 99, 100, 349)}
    there |= {key: ("1.parquet", i) for i, key in enumerate(keys[350:360])}
    there |= {key: ("2.parquet", i) for i, key in enumerate(keys[360:])}
    indexes = KeyIndexCache(most)
    for _ in range(3):
        asked = [*rnd.sample(keys, 300), *((f"t{i}", "none", i) for i in range(5))]
        assert places(indexes, files, asked) == {key: there[key] for key in asked if key in there}
        assert indexes.nbytes <= most
    assert (indexes.nbytes > 0) == (most > 0)


def test_keys_of_a_file_are_read_once(tmp_path: Path) -> None:
    keys = random_keys(random.Random(1), 250)
    one, indexes = file(tmp_path, keys), KeyIndexCache(1 << 20)
    first = places(indexes, [one], keys[200:220])
    one.full_path.unlink()
    assert places(indexes, [one], keys[200:220]) == first
    assert len(places(indexes, [one], keys)) == 250
    with pytest.raises(FileNotFoundError):
        places(KeyIndexCache(0), [one], keys)


def test_what_was_long_not_asked_for_gives_way_and_what_is_in_use_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_keys, "_IN_USE", 2)
    keys = random_keys(random.Random(1), 300)
    old, new = file(tmp_path / "old", keys[:150]), file(tmp_path / "new", keys[150:])
    probe = KeyIndexCache(1 << 20)
    places(probe, [old], keys)
    indexes = KeyIndexCache(probe.nbytes * 3 // 2)
    places(indexes, [old], keys)
    places(indexes, [old, new], keys)
    new.full_path.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        places(indexes, [new], keys)
    (tmp_path / "away").rename(new.full_path)
    places(indexes, [new], keys)
    new.full_path.unlink()
    assert len(places(indexes, [new], keys)) == 150


def test_of_files_that_are_replaced_nothing_is_kept(tmp_path: Path) -> None:
    keys, indexes = random_keys(random.Random(1), 300), KeyIndexCache(1 << 20)
    other, stays = file(tmp_path / "other", keys), file(tmp_path / "table", keys[:100])
    places(indexes, [other], keys)
    places(indexes, [stays], keys)
    least = indexes.nbytes
    for first in (100, 150, 200):
        replaced = file(tmp_path / "table", keys[first : first + 50])
        assert len(places(indexes, [stays, replaced], keys)) == 150
        assert indexes.nbytes > least
    assert len(places(indexes, [stays], keys)) == 100
    assert indexes.nbytes == least


def test_a_footer_is_read_once_and_counts_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Path]()

    def noted(path: Path) -> ParquetFooter:
        read.append(path)
        return ParquetFooter.from_metadata(pq.read_metadata(path))

    monkeypatch.setattr(ParquetFooter, "read_footer", noted)
    keys, indexes = random_keys(random.Random(1), 250), KeyIndexCache(1 << 20)
    one = file(tmp_path, keys)
    first = places(indexes, [one], keys[:3])
    assert indexes.nbytes > ParquetFooter.from_metadata(pq.read_metadata(one.full_path)).nbytes
    assert places(indexes, [one], keys[:3]) == first
    assert read == [one.full_path]


def test_footers_give_way_to_keys_and_none_is_kept_where_keys_fill_the_memory(tmp_path: Path) -> None:
    keys = random_keys(random.Random(1), 300)
    one, two = file(tmp_path, keys[:150]), file(tmp_path, keys[150:])
    footer = ParquetFooter.from_metadata(pq.read_metadata(one.full_path)).nbytes
    probe = KeyIndexCache(1 << 20)
    places(probe, [one, two], keys)
    alone = probe.nbytes - 2 * footer
    indexes = KeyIndexCache(alone + footer // 2)
    for _ in range(2):
        assert len(places(indexes, [one, two], keys)) == 300
        assert indexes.nbytes == alone
    one.full_path.unlink()
    with pytest.raises(FileNotFoundError):  # its footer, for its keys are known
        places(indexes, [one, two], keys)


@pytest.mark.parametrize("compared", [1, 1 << 21])
def test_rows_of_many_files_are_reported_apart_together_or_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: int
) -> None:
    monkeypatch.setattr(file_keys, "_LARGE", 1)
    monkeypatch.setattr(file_keys, "_LONG", 2)
    monkeypatch.setattr(rows_by_key, "_COMPARED", compared)
    keys = sorted(random_keys(random.Random(5), 600))
    files = [file(tmp_path, keys[first : first + 100], gone=(7, 99)) for first in range(0, 600, 100)]
    there = {key: (f"{n // 100}.parquet", n % 100) for n, key in enumerate(keys) if n % 100 not in (7, 99)}
    asked = random.Random(6).sample(keys, 200)
    expected = {key: there[key] for key in asked if key in there}
    assert places(KeyIndexCache(1 << 20), files, asked) == expected


def test_of_a_file_those_row_groups_are_read_that_have_rows_asked_for(tmp_path: Path) -> None:
    keys = random_keys(random.Random(2), 5 * GROUP)
    path = file(tmp_path, keys).full_path
    footer, content = pq.read_metadata(path), bytearray(path.read_bytes())
    for group in (0, 2, 4):  # what they have is made unreadable
        for column in (footer.row_group(group).column(number) for number in range(4)):
            begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            content[begin : begin + 20] = bytes(20)
    path.write_bytes(content)
    rows = np.array([GROUP, 2 * GROUP - 1, 3 * GROUP, 3 * GROUP + 7])
    assert read_rows(path, rows, ["value", "younger"]).to_pydict() == {"value": rows.tolist()}
    with pytest.raises(OSError):  # noqa: PT011 - the text is Arrow's
        read_rows(path, np.array([0]), ["value"])


@pytest.mark.parametrize("options", [
    {},
    {"use_dictionary": False},
    {"use_dictionary": ["few"]},
    {"dictionary_pagesize_limit": 256},  # what is beyond is plain, in the same group
    {"store_schema": False, "version": "1.0"},
])  # fmt: skip
def test_texts_are_as_they_were_however_a_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(file_rows, "_BATCH", 70)
    rnd, many = random.Random(7), 5 * GROUP
    columns = {
        "few": [rnd.choice(["on", "off", "", "ö", None]) for _ in range(many)],
        "many": [f"{rnd.random()}" if number >= GROUP else "all" for number in range(many)],
        "none": pa.nulls(many, pa.string()),
        "bytes": [str(number % 9).encode() for number in range(many)],
        "lists": [[str(number % 7)] * (number % 3) for number in range(many)],
        "large": pa.array([f"{number % 5}" for number in range(many)], pa.large_string()),
    }
    whole = pa.table(columns).append_column("numbered", pa.array(columns["few"]).dictionary_encode())
    pq.write_table(whole, tmp_path / "one.parquet", row_group_size=GROUP, **options)
    rows = np.array(sorted(rnd.sample(range(many), 60)))
    names = rnd.sample(whole.column_names, len(whole.column_names))
    found = read_rows(tmp_path / "one.parquet", rows, names)
    assert found.column_names == names
    assert found.to_pydict() == whole.select(names).take(rows).to_pydict()
    assert {found.schema.field(name).type for name in ("few", "many", "none")} == {pa.string()}
    assert found.schema == read_rows(tmp_path / "one.parquet", rows[:0], names).schema


@pytest.mark.parametrize(("least", "most", "open_"), [
    ("2023-11-14T22:13:19.000Z", "2023-11-14T22:13:19.999Z", False),
    ("2023-11-14T22:13:19.000Z", "2023-11-14T22:13:20.000Z", True),
    ("2023-11-14T22:13:20.001Z", "2023-11-14T22:13:21.000Z", False),
    ("0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", True),
    ("no time", "2023-11-14T22:13:19.000Z", True),
])  # fmt: skip
def test_a_file_is_left_out_by_its_times_which_are_cut_to_milliseconds(
    tmp_path: Path, least: str, most: str, open_: bool
) -> None:
    at = 1_700_000_000_000_123  # 22:13:20.000123
    one = file(tmp_path, [("t", "r", at)], minValues={"at": least}, maxValues={"at": most})
    assert len(places(KeyIndexCache(0), [one], [("t", "r", at)])) == open_
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at)
    assert one.may_have_values_in_ranges({"at": (moment, moment)}) == open_


def test_what_is_combined_has_one_row_for_each_key_and_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    keys = random_keys(random.Random(3), 250)
    files, asked = [file(tmp_path, keys[:120]), file(tmp_path, keys[120:])], [*keys[100:140], ("new", "r", 1)]
    source, seen = table(asked), list[pa.Table]()

    def combine(rows: pa.Table, held: pa.Table) -> pa.Table:
        seen.append(held)
        return rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))  # in any order

    lookup = MergeRowLookup(KeyIndexCache(0), combine, 1 << 20)
    found = lookup.find_rows(files, source, KEYS, SCHEMA)
    assert lookup.combine_source_with_table_rows(source, found, KEYS, SCHEMA) == source
    values = [*range(100, 120), *range(20)]
    assert seen[0].schema == SCHEMA
    assert seen[0].sort_by([(name, "ascending") for name in KEYS]) == (
        table(keys[100:140]).set_column(3, "value", pa.array(values)).sort_by([(name, "ascending") for name in KEYS])
    )
    with pytest.raises(LakeError, match="an upsert of 41 rows gave 40 rows"):
        MergeRowLookup(KeyIndexCache(0), lambda rows, _: rows.slice(1), 1 << 20).combine_source_with_table_rows(
            source, found, KEYS, SCHEMA
        )
    with pytest.raises(TooLargeError, match="rows of 41 keys have more than 9 bytes"):
        MergeRowLookup(KeyIndexCache(0), combine, 9).combine_source_with_table_rows(source, found, KEYS, SCHEMA)
