"""What lookups ask for, and what becomes of the answers: over real tables, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.gold.enrich.reference import ReferenceTable
from sessionlake.gold.enrich.table import CHANGE_COLUMNS, EnrichedTable, ReferenceJoin
from sessionlake.gold.references.lookups import LookupRunner, _convert_fetched_row
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings
from sessionlake.settings.references import LookupSettings
from support.lakes import limit

OWNERS = ReferenceTable("owners", (("device", "string"),), (("owner", "string"), ("since", "timestamp")))
JOIN = ReferenceJoin(OWNERS, "owners", ("session_id",), (("owner", "owner"),))
TABLE = EnrichedTable("owned", CHANGE_COLUMNS, (JOIN,))
ARROW = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Asking:
    """Lookups of one reference table, what is answered, and what was asked for."""

    def __init__(self, home: Path, **further: Any) -> None:
        self.lake = Lake(Settings(home=home))
        self.now, self.asked = NOW, list[str]()
        self.answer: Callable[[str], Any] = lambda device: [{"device": device, "owner": "x", "since": None}]
        self.whole: Callable[[list[Row]], Any] = lambda rows: rows
        self.settings = LookupSettings.model_validate({"python": "any:ANY", "retry_after": "1 minute", **further})
        self.write(OWNERS.table_name, OWNERS.arrow_schema().empty_table())
        self.write(TABLE.table_name, self.rows([], 0))
        self.write(LOOKUP_FAILURES, schema_of(TABLES[LOOKUP_FAILURES].column_types).empty_table())
        self.begin()

    def begin(self) -> None:
        self.lookups = LookupRunner(None, self.lake, OWNERS, self.settings, self, [TABLE], lambda: self.now)

    def fetch(self, keys: Sequence[Row]) -> Any:
        devices = [key["device"] for key in keys]
        self.asked += devices
        return self.whole([row for device in devices for row in self.answer(device)])

    def write(self, table: str, rows: pa.Table) -> None:
        write_deltalake(FolderStorage(self.lake.settings).path(table), rows, mode="append")

    def rows(self, sessions: Sequence[str], batch: int, since: datetime | None = None) -> pa.Table:
        """Rows of the enriched table; `since`: of the version that was found."""
        rows = [{"session_id": session, "_batch": batch, JOIN.valid_from_column: since} for session in sessions]
        return pa.Table.from_pylist(rows, schema_of(TABLE.column_types))

    def add(self, sessions: Sequence[str], batch: int) -> None:
        """As gold adds a batch of silver's; no correction is made."""
        self.write(TABLE.table_name, self.rows(sessions, batch))
        self.lookups.schedule_search_of_batches(batch, batch)

    def run(self) -> list[str]:
        """Asks until there is no more to ask for; returns what was asked for."""
        self.asked.clear()
        for _ in range(50):
            if not self.lookups.request_rows_of_next_keys():
                return sorted(self.asked)
        raise AssertionError(f"asked without end: {self.asked}")

    def owners(self) -> dict[str, str]:
        return {row["device"]: row["owner"] for row in self.lake.reader().read_rows(OWNERS.table_name)}

    def failures(self) -> dict[str, tuple[str, int]]:
        rows = self.lake.reader().read_rows(LOOKUP_FAILURES)
        return {json.loads(row["key"])[0]: (row["error"], row["attempts"]) for row in rows}


def schema_of(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    return pa.schema([(name, ARROW[sql]) for name, sql in columns])


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


@pytest.mark.parametrize("ttl", [None, "1 day"])
def test_more_keys_than_are_remembered_are_asked_for_once_each_before_any_row_is_corrected(tmp_path: Path, ttl: Any):
    asking = Asking(tmp_path, cache=2, batch=2, in_flight=1, ttl=ttl)
    asking.write(TABLE.table_name, asking.rows("abcde", 0))
    assert asking.run() == [*"abcde"]
    asking.add("fghij", 1)
    asking.add("klm", 2)
    assert asking.run() == [*"fghijklm"]
    assert asking.run() == []


def test_batches_that_are_added_before_the_first_look_are_looked_at_once(tmp_path: Path):
    asking = Asking(tmp_path, cache=1)
    asking.add("ab", 0)
    asking.add("c", 1)
    assert asking.run() == [*"abc"]


def test_batches_of_silver_may_come_in_any_order(asking: Asking):
    asking.add("a", 7)
    assert asking.run() == ["a"]
    asking.add("b", 3)
    assert asking.run() == ["b"]


def test_after_a_restart_what_nothing_is_known_of_is_asked_for_and_else_what_changes_name_from_then_on(tmp_path: Path):
    asking = Asking(tmp_path, ttl="1 day")
    asking.write(TABLE.table_name, asking.rows(["a"], 0))
    asking.write(TABLE.table_name, asking.rows(["b"], 0, since=NOW))
    assert asking.run() == ["a"]
    asking.add("b", 1)
    assert asking.run() == ["b"]


def test_what_failed_is_asked_for_when_it_is_due_whoever_names_it_and_after_a_restart_too(asking: Asking):
    asking.answer = lambda _: []
    asking.add("ab", 0)
    assert (asking.run(), asking.failures()) == (["a", "b"], dict.fromkeys("ab", ("unknown", 1)))
    asking.begin()
    asking.add("ac", 1)
    assert asking.run() == ["c"]
    asking.now += timedelta(minutes=1)
    assert asking.run() == ["a", "b", "c"]
    assert asking.failures() == dict.fromkeys("abc", ("unknown", 2))


def test_a_key_that_nobody_knows_is_let_go_of_in_the_end_and_one_that_nobody_answered_is_not(asking: Asking):
    asking.answer = lambda device: [{"device": device}] if device == "broken" else []
    asking.add(["broken", "unknown"], 0)
    for _ in range(29):
        assert asking.run() == ["broken", "unknown"]
        asking.now += timedelta(days=1)
    assert asking.failures() == {"broken": ("answer", 29), "unknown": ("unknown", 29)}
    for still in (["broken", "unknown"], ["broken"], ["broken"]):
        assert asking.run() == still
        asking.now += timedelta(days=1)
    assert asking.failures() == {"broken": ("answer", 32)}
    asking.begin()
    assert asking.run() == ["broken", "unknown"]


def test_rows_of_a_key_that_cannot_be_put_in_spoil_no_other_key(asking: Asking):
    def answer(device: str) -> list[Row]:
        row = {"device": device, "owner": device, "since": None}
        return [row, row] if device == "b" else [row]

    asking.answer = answer
    asking.add("abc", 0)
    asking.run()
    assert (asking.owners(), asking.failures()) == ({"a": "a", "c": "c"}, {"b": ("answer", 1)})


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_key_with_one_row_that_cannot_be_used_none_is(asking: Asking, order: int):
    good = {"device": "a", "owner": "x", "since": None}
    asking.answer = lambda _: [good, good | {"owner": 7}][::order]
    asking.add("a", 0)
    asking.run()
    assert (asking.owners(), asking.failures()) == ({}, {"a": ("answer", 1)})


@pytest.mark.parametrize("answer", [None, 7, {"a": 1}, [("a", "x")], "rows"])
def test_an_answer_that_is_no_list_of_rows_is_a_failure_of_its_keys(asking: Asking, answer: Any):
    asking.whole = lambda _: answer
    asking.add("a", 0)
    asking.run()
    assert asking.failures() == {"a": ("answer", 1)}


def test_a_lookup_in_python_may_answer_with_datetimes(asking: Asking):
    asking.answer = lambda device: [{"device": device, "owner": "x", "since": NOW, "valid_from": NOW}]
    asking.add("a", 0)
    asking.run()
    (row,) = asking.lake.reader().read_rows(OWNERS.table_name)
    assert (row["since"], row["valid_from"]) == (NOW, NOW)


@pytest.mark.parametrize(
    ("sql", "sent", "found"),
    [
        ("decimal(5,2)", 1.1, Decimal("1.10")),
        ("decimal(5,2)", "-1.10", Decimal("-1.10")),
        ("decimal(38,0)", 10**37, Decimal(10**37)),
        ("decimal(5,2)", None, None),
        ("decimal(5,2)", "0.001", "more than 2 decimals"),
        ("decimal(5,2)", True, "no number"),
        ("timestamp_ntz", "2026-01-02T03:04:05.000006", datetime.fromisoformat("2026-01-02T03:04:05.000006")),
        ("timestamp_ntz", "2026-01-02T03:04:05Z", "zone"),
    ],
)
def test_decimals_and_times_without_zone_of_an_answer_are_exact(sql: str, sent: Any, found: Any):
    reference = ReferenceTable("owners", (("device", "string"),), (("value", sql),))
    row = {"device": "a", "value": sent}
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            _convert_fetched_row(reference, row)
    else:
        assert _convert_fetched_row(reference, row)["value"] == found


def test_of_a_key_that_rests_the_answer_is_refused_and_others_are_put_in(asking: Asking):
    """Somebody has left a row of it that begins at no time."""
    asking.write(OWNERS.table_name, pa.Table.from_pylist([{"device": "a", "owner": "y"}], OWNERS.arrow_schema()))
    asking.add("ab", 0)
    asking.run()
    assert (asking.owners(), asking.failures()) == ({"a": "y", "b": "x"}, {"a": ("answer", 1)})


def test_where_the_reference_table_rests_its_keys_are_asked_for_again_later_and_not_at_once(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
):
    limit(monkeypatch, driver_bytes=0)
    asking.write(OWNERS.table_name, pa.Table.from_pylist([{"device": "z", "owner": "z"}], OWNERS.arrow_schema()))
    asking.add("a", 0)
    assert (asking.run(), asking.failures()) == (["a"], {"a": ("table", 1)})
    assert asking.run() == []


def test_while_somebody_else_writes_the_reference_table_nothing_is_noted_and_the_keys_stay_wanted(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
):
    def claimed(*_: Any, **__: Any) -> None:
        raise ClaimedByOtherProcessError("somebody else")

    asking.add("a", 0)
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.gold.references.lookups.write_reference_rows", claimed)
        assert (asking.run(), asking.failures()) == (["a"], {})
    assert (asking.run(), asking.owners()) == (["a"], {"a": "x"})
