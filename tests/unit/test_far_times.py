"""Times outside the years 1 to 9999: they come out of tables as numbers with a hint, and never as a traceback."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime
from operator import eq, ge, le, lt
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CUTS
from sessionlake.delta.storage.far_times import (
    OutOfRangeTime,
    convert_ms_to_time,
    convert_time_to_micros,
    convert_time_to_ms,
    format_time,
)
from sessionlake.delta.storage.reading import Condition, build_key_conditions, is_in
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.values import convert_to_python_value, convert_to_python_values, convert_to_row_dicts
from sessionlake.history.state import convert_times_to_iso
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.settings.model import Settings
from support.lakes import find_table_folder

INT64_MAX = 2**63 - 1
MOST_MS = INT64_MAX // 1000
TEXTS = [
    (0, "1970-01-01 00:00:00.000Z"),
    (-1, "1969-12-31 23:59:59.999Z"),
    (1_767_323_045_678, "2026-01-02 03:04:05.678Z"),
    (FIRST_MS, "0001-01-01 00:00:00.000Z"),
    (LAST_MS, "9999-12-31 23:59:59.999Z"),
    (FIRST_MS - 1, "-62135596800001 ms since 1970 (before the year 1)"),
    (LAST_MS + 1, "253402300800000 ms since 1970 (beyond the year 9999)"),
    (INT64_MAX, "9223372036854775807 ms since 1970 (beyond the year 9999)"),
    (-INT64_MAX - 1, "-9223372036854775808 ms since 1970 (before the year 1)"),
]
MS = [ms for ms, _ in TEXTS if abs(ms) <= MOST_MS] + [MOST_MS, -MOST_MS]


@pytest.mark.parametrize(("ms", "text"), TEXTS)
def test_every_millisecond_has_a_text(ms: int, text: str) -> None:
    found = convert_ms_to_time(ms)
    assert (format_time(ms), format_time(found), convert_time_to_ms(found)) == (text, text, ms)
    assert isinstance(found, OutOfRangeTime) is ("ms since" in text)
    assert f"{found:%Y}" == (text if isinstance(found, OutOfRangeTime) else f"{found:%Y}")


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert format_time(datetime(2026, 1, 2)) == "2026-01-02 00:00:00.000Z"  # noqa: DTZ001 - that is what is tested


def test_far_times_and_dates_sort_as_times() -> None:
    times = [convert_ms_to_time(ms) for ms in sorted(MS)]
    mixed = random.Random(1).sample(times, len(times))
    assert sorted(mixed) == times
    assert [max(mixed), min(mixed)] == [times[-1], times[0]]
    for at, low in enumerate(times):
        assert all(low < high and high > low and low <= high and high >= low for high in times[at + 1 :])
        assert all((low == other) is (low is other) for other in times)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_values_of_timestamps_in_any_unit(unit: str, zone: str | None) -> None:
    factor = {"s": 0.001, "ms": 1, "us": 1000}[unit]
    numbers = [int(ms * factor) for ms in MS if unit != "s" or ms % 1000 == 0] + [None]
    found = convert_to_python_values(pa.array(numbers, pa.timestamp(unit, zone)))
    whole = [convert_ms_to_time(int(n / factor) if unit == "s" else int(n // factor)) for n in numbers if n is not None]
    expected = [at if zone or isinstance(at, OutOfRangeTime) else at.replace(tzinfo=None) for at in whole]
    assert (found[:-1], found[-1]) == (expected, None)


def nested() -> list[tuple[pa.DataType, list[Any], list[Any]]]:
    far, near = (LAST_MS + 1) * 1000, 5
    time, then = pa.timestamp("us", "UTC"), datetime.fromtimestamp(0, UTC).replace(microsecond=5)
    struct = pa.struct([("at", time), ("n", pa.int64())])
    return [
        (pa.list_(time), [[far, None], None, [], [near]], [[OutOfRangeTime(LAST_MS + 1), None], None, [], [then]]),
        (
            struct,
            [{"at": far, "n": 1}, None, {"at": near, "n": None}],
            [{"at": OutOfRangeTime(LAST_MS + 1), "n": 1}, None, {"at": then, "n": None}],
        ),
        (pa.map_(pa.string(), time), [[("a", far)], None, []], [[("a", OutOfRangeTime(LAST_MS + 1))], None, []]),
        (
            pa.list_(struct),
            [[{"at": far, "n": 1}, None], []],
            [[{"at": OutOfRangeTime(LAST_MS + 1), "n": 1}, None], []],
        ),
    ]


@pytest.mark.parametrize(("kind", "given", "expected"), nested())
def test_values_of_nested_times(kind: pa.DataType, given: list[Any], expected: list[Any]) -> None:
    array = pa.array(given, kind)
    assert convert_to_python_values(array) == expected
    assert convert_to_python_values(pa.chunked_array([array.slice(1), array.slice(0, 1)])) == [
        *expected[1:],
        expected[0],
    ]
    assert convert_to_row_dicts(pa.table({"x": array, "y": pa.array(range(len(given)))})) == [
        {"x": value, "y": at} for at, value in enumerate(expected)
    ]


def test_values_of_days_and_single_values() -> None:
    days = pa.array([0, 10**7, -(10**7), None], pa.date32())
    assert convert_to_python_values(days) == [
        date(1970, 1, 1),
        OutOfRangeTime(10**7 * 86_400_000),
        OutOfRangeTime(-(10**7) * 86_400_000),
        None,
    ]
    assert convert_to_python_value(pa.scalar((LAST_MS + 1) * 1000, pa.timestamp("us", "UTC"))) == OutOfRangeTime(
        LAST_MS + 1
    )
    assert convert_to_python_value(pa.scalar(None, pa.timestamp("us", "UTC"))) is None


def shown(form: OutputFormat, *values: Any) -> str:
    out = io.StringIO()
    show_rows([f"c{n}" for n in range(len(values))], [values], form, out)
    return out.getvalue()


def test_far_times_are_hinted_for_people_and_numbers_for_programs() -> None:
    far = OutOfRangeTime(LAST_MS + 1)
    assert json.loads(shown(OutputFormat.JSON, far, [far], {"at": far})) == {
        "c0": LAST_MS + 1, "c1": [LAST_MS + 1], "c2": {"at": LAST_MS + 1},
    }  # fmt: skip
    assert shown(OutputFormat.CSV, far).splitlines()[1] == str(LAST_MS + 1)
    assert "253402300800000 ms since 1970 (beyond the year 9999)" in shown(OutputFormat.TABLE, far)


@pytest.mark.parametrize(("ms", "text"), TEXTS)
def test_a_state_is_reported_at_any_time(ms: int, text: str) -> None:
    expected = ms if "since" in text else text.replace(" ", "T")
    assert convert_times_to_iso({"last_ts": ms, "held": [{"ts": ms}]}) == {
        "last_ts": expected,
        "held": [{"ts": expected}],
    }


@pytest.fixture
def lake(settings: Settings) -> Lake:
    """A table with a row at each of `MS`, in two files."""
    found, schema = Lake(settings), pa.schema([("snapshot_at", pa.timestamp("us", "UTC")), ("position", pa.int64())])
    write_deltalake(find_table_folder(found, CUTS), schema.empty_table())
    for number, part in enumerate((MS[::2], MS[1::2])):
        rows = pa.table([pa.array([ms * 1000 for ms in part], schema[0].type), pa.array(part)], schema=schema)
        found.storage.append_rows(None, CUTS, rows, Txn("test", number))
    return found


@pytest.mark.parametrize("compare", [eq, ge, le, lt])
@pytest.mark.parametrize("ms", MS)
def test_rows_are_found_by_any_time(lake: Lake, compare: Any, ms: int) -> None:
    found = [*lake.reader().read_rows(CUTS, ("snapshot_at", compare, convert_ms_to_time(ms)))]
    assert sorted(row["position"] for row in found) == sorted(other for other in MS if compare(other, ms))
    assert all(convert_time_to_ms(row["snapshot_at"]) == row["position"] for row in found)


def test_rows_are_found_by_several_times_and_keys_by_their_ends(lake: Lake) -> None:
    reader = lake.reader()
    times: Condition = (
        "snapshot_at",
        is_in,
        [convert_ms_to_time(MS[0]), convert_ms_to_time(MOST_MS), convert_ms_to_time(-MOST_MS)],
    )
    assert sorted(row["position"] for row in reader.read_rows(CUTS, times)) == sorted([MS[0], MOST_MS, -MOST_MS])
    schema = pa.schema([("snapshot_at", pa.timestamp("us", "UTC"))])
    wanted = pa.table([pa.array([ms * 1000 for ms in MS], schema[0].type)], schema=schema)
    assert len([*reader.read_rows(CUTS, *build_key_conditions(wanted, ["snapshot_at"], schema))]) == len(MS)
    assert convert_time_to_micros(convert_ms_to_time(-MOST_MS)) == -MOST_MS * 1000
