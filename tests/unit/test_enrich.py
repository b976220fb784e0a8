"""Reference tables joined as of event time: whatever the batches and corrections, as plain Python says."""

from __future__ import annotations

import math
import random
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.declared.references import list_declared_references
from sessionlake.gold.enrich.asof import OPEN_END
from sessionlake.gold.enrich.reference import (
    FROM,
    TO,
    ReferenceDifference,
    ReferenceTable,
    are_rows_in_time_spans,
    find_changed_time_spans,
    find_reference_difference,
    find_reference_key_faults,
)
from sessionlake.gold.enrich.table import CHANGE_COLUMNS, EnrichedTable, ReferenceJoin
from sessionlake.gold.enrich.upsert import (
    FIRST_MICROS,
    NewReferenceRow,
    ReferenceRowVersion,
    insert_reference_rows,
    plan_reference_upsert,
)
from sessionlake.gold.references.applied import read_reference_rows
from sessionlake.gold.references.step import _drop_batches_already_added, _unite_ranges
from sessionlake.gold.references.writing import read_reference_rows_file
from sessionlake.protocol.types import Row
from sessionlake.settings.gold import GoldSettings
from sessionlake.settings.model import Settings
from sessionlake.settings.references import JoinSettings, ReferenceSettings
from support.lakes import find_table_folder
from support.seeds import examples

SITES = ReferenceTable("sites", (("site", "string"), ("floor", "bigint")), (("place", "string"), ("size", "double")))
FLAGS = ReferenceTable("flags", (("status", "string"),), (("bad", "boolean"),))
OWN = (*CHANGE_COLUMNS, ("qty", "bigint"), ("status", "string"))
TABLE = EnrichedTable(
    "placed",
    OWN,
    (
        ReferenceJoin(SITES, "sites", ("session_id", "qty"), (("place", "place"), ("area", "size"))),
        ReferenceJoin(FLAGS, "flags", ("status",), (("bad", "bad"),)),
    ),
)
TYPES = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}


def rows_of(
    reference: ReferenceTable, spans: list[tuple[tuple[Any, ...], int, int | None, tuple[Any, ...]]]
) -> pa.Table:
    """Rows of a reference table; times in microseconds."""
    rows = []
    for key, begin, end, values in spans:
        row = dict(zip(reference.key_names, key, strict=True)) | {FROM: begin, TO: end}
        rows.append(row | dict(zip((name for name, _ in reference.columns), values, strict=True)))
    return pa.Table.from_pylist(rows, reference.arrow_schema())


def changes_of(seed: int, count: int) -> list[Row]:
    rng = random.Random(seed)
    return [
        {
            "topic": "t", "session_id": rng.choice("abcdef"), "row_id": rng.choice(["r", None]), "change": "upsert",
            "partition": rng.randrange(2), "_offset": i, "ordinal": 0, "_ts": rng.choice([rng.randint(-3, 12), 10**17]),
            "_position": i, "qty": rng.choice([1, 2, None]), "status": rng.choice(["x", "y", None]), "_batch": 0,
        }
        for i in range(count)
    ]  # fmt: skip


def as_table(changes: list[Row]) -> pa.Table:
    called = {"offset": "_offset", "ts": "_ts", "position": "_position"}
    fields = [(called.get(name, name), TYPES[sql]) for name, sql in OWN]
    return pa.Table.from_pylist(changes, pa.schema([*fields, ("_batch", pa.int64())]))


def by_hand(changes: list[Row], sites: pa.Table, flags: pa.Table) -> dict[int, tuple[Any, ...]]:
    """By looking through all rows for each change."""
    sides = (
        (plain(sites), (("site", "session_id"), ("floor", "qty")), ("place", "size", FROM)),
        (plain(flags), (("status", "status"),), ("bad", FROM)),
    )
    found = {}
    for change in changes:
        at, told = change["_ts"] * 1000, list[Any]()
        for rows, on, names in sides:
            mine = [row for row in rows if all(change[b] is not None and row[a] == change[b] for a, b in on)]
            held = [row for row in mine if row[FROM] <= at and (row[TO] is None or at < row[TO])]
            assert len(held) <= 1
            told += [held[0][name] for name in names] if held else [None] * len(names)
        found[change["_offset"]] = tuple(told)
    return found


def plain(rows: pa.Table) -> list[Row]:
    """Its rows, times as numbers."""
    types = [(f.name, pa.int64() if f.name in {FROM, TO} else f.type) for f in rows.schema]
    return rows.cast(pa.schema(types)).to_pylist()


def told(rows: pa.Table) -> dict[int, tuple[Any, ...]]:
    names = ["place", "area", "sites_valid_from", "bad", "flags_valid_from"]
    plain = [rows[n].cast(pa.int64()) if n.endswith(FROM) else rows[n] for n in names]
    columns = [column.to_pylist() for column in (rows["offset"], *plain)]
    found = {values[0]: tuple(values[1:]) for values in zip(*columns, strict=True)}
    assert len(found) == rows.num_rows
    return found


def state(rng: random.Random, keys: list[tuple[Any, ...]], values: list[list[Any]]) -> list[Any]:
    """Rows of a reference table: for each key bounds in microseconds, and what holds between most of them."""
    spans = []
    for key in keys:
        bounds = sorted(rng.sample(range(-2_500, 9_500), rng.randint(0, 5)))
        for begin, end in zip(bounds, [*bounds[1:], None], strict=False):
            if rng.random() < 0.8:
                spans.append((key, begin, end, tuple(map(rng.choice, values))))
    return rng.sample(spans, len(spans))


def sites(rng: random.Random) -> pa.Table:
    keys = [(site, floor) for site in "abcde" for floor in (1, 2)]
    return rows_of(SITES, state(rng, keys, [["p", "q", None], [1.5, None]]))


def flags(rng: random.Random) -> pa.Table:
    return rows_of(FLAGS, state(rng, [("x",), ("z",)], [[True, False]]))


@examples(usual=30, in_all=300)
@given(st.integers(0, 2**40))
def test_corrected_batch_by_batch_a_table_is_what_the_last_state_makes_of_all_changes(seed: int):
    """Ten keys an example, each a case of its own: 300. Reference rows come before, between and after batches of any
    size, and are taken in slices of any size.
    """
    rng = random.Random(seed)
    changes = changes_of(seed, rng.randint(0, 80))
    taken = {one.name: one.arrow_schema().empty_table() for one in (SITES, FLAGS)}
    held: dict[int, tuple[Any, ...]] = {}
    done = 0
    for last in sorted({*(rng.randint(0, len(changes)) for _ in range(2)), len(changes)}):
        now = {"sites": sites(rng), "flags": flags(rng)}
        held |= told(TABLE.join_changes_with_references(as_table(changes[done:last]), taken))
        done, written = last, as_table(changes[:last])
        for join in TABLE.joins:
            reference = join.reference
            found, _ = find_reference_difference(reference, taken[reference.name], now[reference.name])
            for part in found.split_into_parts(reference, rng.choice([9, 99])):
                assert part.row_count
                taken[reference.name] = applied(reference, taken[reference.name], part)
                held |= corrected(join, written, part, taken)
        assert held == by_hand(changes[:last], *now.values())


def applied(reference: ReferenceTable, taken: pa.Table, part: ReferenceDifference) -> pa.Table:
    gone = part.removed.to_pylist()
    left = [row for row in taken.to_pylist() if row not in gone]
    assert len(left) == taken.num_rows - len(gone)
    return pa.concat_tables([pa.Table.from_pylist(left, reference.arrow_schema()), part.added])


def corrected(
    join: ReferenceJoin, written: pa.Table, part: ReferenceDifference, taken: dict[str, pa.Table]
) -> dict[int, Any]:
    """Rows of changes in the spans that a slice touches, and no other, are other than before."""
    keys = [written[name] for name in join.on]
    touched = are_rows_in_time_spans(
        join.reference, find_changed_time_spans(join.reference, part), keys, written["_ts"].to_numpy()
    )
    return told(TABLE.join_changes_with_references(written.filter(pa.array(touched)), taken))


@examples(usual=30, in_all=300)
@given(st.integers(0, 2**40), st.integers(1, 20))
def test_a_slice_is_of_whole_keys_and_no_larger_than_asked_for_unless_of_one_key(seed: int, most: int):
    rng = random.Random(seed)
    found, _ = find_reference_difference(SITES, sites(rng), sites(rng))
    parts = [(part.removed.to_pylist(), part.added.to_pylist()) for part in found.split_into_parts(SITES, most)]
    keys = [{(row["site"], row["floor"]) for row in (*gone, *new)} for gone, new in parts]
    assert sum(map(len, keys)) == len({key for part in keys for key in part})
    assert all(
        len(mine) == 1 or 0 < len(gone) + len(new) <= most for mine, (gone, new) in zip(keys, parts, strict=True)
    )
    for i, side in enumerate((found.removed, found.added)):
        assert sum(len(part[i]) for part in parts) == side.num_rows


@examples(usual=30, in_all=300)
@given(st.integers(0, 2**40))
def test_a_correction_touches_no_change_of_which_nothing_else_is_said(seed: int):
    rng = random.Random(seed)
    changes, old, new = as_table(changes_of(seed, 60)), sites(rng), sites(rng)
    found, _ = find_reference_difference(SITES, old, new)
    join, none = TABLE.joins[0], FLAGS.arrow_schema().empty_table()
    keys = [changes[name] for name in join.on]
    touched = are_rows_in_time_spans(SITES, find_changed_time_spans(SITES, found), keys, changes["_ts"].to_numpy())
    a, b = (told(TABLE.join_changes_with_references(changes, {"sites": rows, "flags": none})) for rows in (old, new))
    assert {offset for offset in a if a[offset] != b[offset]} == {
        *changes["_offset"].filter(pa.array(touched)).to_pylist()
    }


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([(("a", 1), 0, 10, ("p", 1.0)), (("a", 1), 9, None, ("q", 1.0))], "two rows hold at the same time"),
        ([(("a", 1), 0, None, ("p", 1.0)), (("a", 1), 0, None, ("p", 1.0))], "two rows hold at the same time"),
        ([(("a", 1), 5, 5, ("p", 1.0))], "valid_to is not after valid_from"),
        ([(("a", 1), None, 5, ("p", 1.0))], "valid_from is null"),
        ([(("a", None), 0, 5, ("p", 1.0))], "a key is null"),
    ],
)
def test_a_key_with_a_fault_rests_and_the_others_are_taken(spans: list[Any], reason: str):
    held = rows_of(SITES, [(("a", 1), 3, None, ("held", 1.0)), (("b", 1), 0, None, ("old", 1.0))])
    now = rows_of(SITES, [*spans, (("b", 1), 0, None, ("new", 1.0))])
    found, faults = find_reference_difference(SITES, held, now)
    assert [fault.reason.partition(" (")[0] for fault in faults] == [reason]
    assert found.added["place"].to_pylist() == ["new"]
    assert set(found.removed["place"].to_pylist()) - {"held"} == {"old"}
    assert ("held" in found.removed["place"].to_pylist()) == (spans[0][0] != ("a", 1))


def test_spans_that_meet_at_a_microsecond_are_no_fault():
    rows = rows_of(
        SITES, [(("a", 1), 0, 10, ("p", 1.0)), (("a", 1), 10, 11, ("q", 1.0)), (("a", 1), 11, None, ("p", 1.0))]
    )
    assert find_reference_key_faults(SITES, rows)[1] == []


@examples(usual=120, in_all=1200)
@given(st.integers(0, 2**40))
def test_a_row_that_is_put_in_holds_from_its_moment_until_the_next_and_all_else_stays(seed: int):
    rng = random.Random(seed)
    bounds = sorted(rng.sample(range(20), rng.randint(0, 5)))
    pairs = zip(bounds, [*bounds[1:], OPEN_END], strict=False)
    held = [ReferenceRowVersion(begin, end, (rng.choice("ab"),)) for begin, end in pairs if rng.random() < 0.8]
    starts = rng.sample(range(20), rng.randint(1, 3))
    given = [
        NewReferenceRow(begin, rng.choice([None, begin + rng.randint(1, 6)]), (rng.choice("abc"),)) for begin in starts
    ]
    found = insert_reference_rows(held, rng.sample(given, len(given)), 0)
    assert all(one.end <= two.begin for one, two in pairwise(found))
    begins = sorted({*starts, *(one.begin for one in held)})
    for moment in range(30):
        new = [row for row in given if row.begin <= moment < ends_of(row, begins)]
        before = [one.values for one in held if one.begin <= moment < one.end]
        wanted = [max(new, key=lambda row: row.begin).values] if new else before
        assert [one.values for one in found if one.begin <= moment < one.end] == wanted


def ends_of(row: NewReferenceRow, begins: list[int]) -> int:
    return min([b for b in begins if b > row.begin], default=OPEN_END) if row.end is None else row.end


def test_a_row_without_a_moment_holds_since_ever_if_it_is_the_first_and_else_from_now_on_if_it_says_other_than_before():
    assert insert_reference_rows([], [NewReferenceRow(None, None, ("a",))], 7) == [
        ReferenceRowVersion(FIRST_MICROS, OPEN_END, ("a",))
    ]
    held = [ReferenceRowVersion(0, OPEN_END, ("a",))]
    assert insert_reference_rows(held, [NewReferenceRow(None, None, ("a",))], 7) == held
    assert insert_reference_rows(held, [NewReferenceRow(None, None, ("b",))], 7) == [
        ReferenceRowVersion(0, 7, ("a",)),
        ReferenceRowVersion(7, OPEN_END, ("b",)),
    ]


def test_rows_of_a_key_that_cannot_be_put_in_are_refused_and_the_others_are_put_in():
    held = [
        (("rests", 1), None, None, ("p", 1.0)),
        (("rests", 2), 0, None, ("p", 1.0)),
        (("rests", 2), 0, 9, ("p", 1.0)),
    ]
    given = [
        (("once", 1), 5, None, ("p", 1.0)), (("once", 1), 5, 9, ("q", 1.0)), (("ends", 1), 5, 5, ("p", 1.0)),
        ((None, 1), 5, 9, ("p", 1.0)), (("rests", 1), 5, None, ("p", 1.0)), (("rests", 2), 5, None, ("p", 1.0)),
        (("sound", 1), 5, None, ("p", 1.0)),
    ]  # fmt: skip
    found = plan_reference_upsert(SITES, rows_of(SITES, held), rows_of(SITES, given), 0)
    assert found.written["site"].to_pylist() == ["sound"]
    assert {key: reason.partition(" (")[0] for key, reason in found.refused.items()} == {
        ("once", 1): "two rows start at the same moment",
        ("ends", 1): "valid_to is not after valid_from",
        (None, 1): "a key is null",
        ("rests", 1): "the table's own rows of this key have a fault: valid_from is null",
        ("rests", 2): "the table's own rows of this key have a fault: two rows hold at the same time",
    }


def test_one_nan_is_like_another():
    """A writer of Parquet may change its bits: it would be taken anew for ever."""
    held = rows_of(SITES, [(("a", 1), 0, None, ("p", math.nan))])
    assert (
        find_reference_difference(SITES, held, rows_of(SITES, [(("a", 1), 0, None, ("p", -math.nan))]))[0].row_count
        == 0
    )
    assert (
        plan_reference_upsert(
            SITES, held, rows_of(SITES, [(("a", 1), None, None, ("p", float("nan")))]), 7
        ).written.num_rows
        == 0
    )


def test_moments_beyond_those_of_python_are_reported_and_put_in():
    far = 10**18  # the year 33658
    (fault,) = find_reference_key_faults(SITES, rows_of(SITES, [(("a", 1), far, 5, ("p", 1.0))]))[1]
    assert fault.reason.startswith("valid_to is not after valid_from")
    dated = ReferenceTable("dated", (("site", "string"),), (("since", "timestamp"), ("day", "date")))
    held = rows_of(dated, [(("a",), 0, None, (far, 10**7))])
    found = plan_reference_upsert(dated, held, rows_of(dated, [(("a",), 5, None, (far, 10**7))]), 0)
    assert (found.written["since"].cast(pa.int64()).to_pylist(), found.removed.num_rows) == ([far, far], 0)


def test_what_is_written_and_removed_makes_the_table_what_its_versions_are():
    held = rows_of(
        SITES, [(("a", 1), 0, 10, ("p", 1.0)), (("a", 1), 10, None, ("q", 1.0)), (("b", 1), 0, None, ("p", 1.0))]
    )
    found = plan_reference_upsert(SITES, held, rows_of(SITES, [(("a", 1), 5, 20, ("r", None))]), 0)
    assert [(row["place"], row[FROM], row[TO]) for row in plain(found.written)] == [
        ("p", 0, 5), ("r", 5, 20), ("q", 20, None),
    ]  # fmt: skip
    assert [(row["place"], row[FROM]) for row in plain(found.removed)] == [("q", 10)]


def test_of_a_file_an_empty_field_alone_is_null(tmp_path: Path):
    named = ReferenceTable("named", (("site", "string"),), (("place", "string"), ("size", "double")))
    file = tmp_path / "sites.csv"
    file.write_text("site,place,size\nNA,null,\nb,,2\n")
    assert [(r["site"], r["place"], r["size"]) for r in read_reference_rows_file(named, file).to_pylist()] == [
        ("NA", "null", None), ("b", None, 2.0),
    ]  # fmt: skip
    file.write_text("site,place,place,size\na,b,c,1\n")
    with pytest.raises(UsageError, match="has two columns of the name place"):
        read_reference_rows_file(named, file)


@pytest.mark.parametrize("rows", [pa.table({"status": ["x"], "bad": [{"is": True}]}), pa.table({"status": ["x"]})])
def test_a_reference_table_that_cannot_be_reported_as_it_is_declared_rests_as_a_whole(tmp_path: Path, rows: pa.Table):
    lake = Lake(Settings(home=tmp_path))
    moments = pa.nulls(1, FLAGS.arrow_schema().field(FROM).type)
    write_deltalake(
        find_table_folder(lake, FLAGS.table_name), rows.append_column(FROM, moments).append_column(TO, moments)
    )
    with pytest.raises(LakeError, match=r"reference\.flags (has|lacks)"):
        read_reference_rows(lake, lake.reader(), FLAGS)


@pytest.mark.parametrize("name", ["Valid_To", "a b", "_taken_by", "SITE", "__sl_x"])
def test_names_that_a_reference_table_cannot_have_for_a_column_are_refused(name: str):
    with pytest.raises(ValidationError, match=f"column.* '{name}'"):
        ReferenceSettings.model_validate({"name": "sites", "keys": {"site": "string"}, "columns": {name: "string"}})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"keys": {"at": "timestamp"}}, r"at: a key cannot be of this type; use one of .*bigint, date, decimal\(p,s\)"),
        ({"keys": {"raw": "binary"}}, "raw: there is no type 'binary'"),
        ({"keys": {"paid": "decimal(39,1)"}}, r"paid: there is no type 'decimal\(39,1\)'"),
        ({"keys": {"paid": "decimal(2,3)"}}, r"paid: there is no type 'decimal\(2,3\)'"),
        (
            {"keys": {"day": "date"}, "lookup": {"url": "http://x"}},
            "keys are sent as JSON, which has no type date; give the key day",
        ),
    ],
)
def test_types_that_identify_no_row_of_a_reference_table_are_refused(changed: dict[str, Any], why: str):
    with pytest.raises(ValidationError, match=why):
        ReferenceSettings.model_validate({"name": "sites", "keys": {}, "columns": {"place": "string"}} | changed)


def test_a_reference_table_joins_on_decimals_and_dates_and_has_times_without_zone():
    types = {"day": "date", "paid": "decimal(20,4)"}
    own = {"name": "rates", "keys": types, "columns": {"rate": "decimal(38,10)", "since": "timestamp_ntz"}}
    (one,) = list_declared_references(Settings(gold=GoldSettings.model_validate({"references": [own]})))
    day, since = date(1, 1, 1), datetime.fromisoformat("2026-01-02T03:04:05.000006")
    rows = [{"day": day, "paid": Decimal(n), "rate": Decimal("1e-10"), "since": since} for n in (1, 2)]
    made = plan_reference_upsert(
        one, one.arrow_schema().empty_table(), pa.Table.from_pylist(rows, one.arrow_schema()), 0
    )
    assert made.refused == {}
    assert [{name: row[name] for name in rows[0]} for row in made.written.to_pylist()] == rows
    first, second = one.number_keys_of_rows(made.written, made.written.slice(1))
    assert second.tolist() == first[1:].tolist()


def test_a_name_that_an_enriched_table_cannot_have_for_a_column_is_refused():
    with pytest.raises(ValidationError, match="column 'a b': Delta does not allow ' '"):
        JoinSettings.model_validate({"reference": "sites", "keys": {"site": "session_id"}, "take": {"a b": "place"}})


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=8))
def test_silver_s_batches_are_all_added_and_none_that_a_batch_before_has_added_whole(spans: list[tuple[int, int]]):
    added, seen = range(0), set[int]()
    for first, length in spans:
        read = range(first, first + length)
        left = _drop_batches_already_added(read, added)
        assert {*read} - {*added} <= {*left} <= {*read}
        assert bool(left) == bool({*read} - {*added})
        seen |= {*left}
        added = _unite_ranges(added, left) if left else added
        assert {*read} <= {*added} <= seen
