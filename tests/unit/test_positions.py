"""What is read of the ledger in short is what reading all of it gives, whatever the sums were made of, and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, EVENTS, LEDGER, POSITIONS, QUARANTINE, ROWS, SESSIONS, SNAPSHOTS
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import LakeError
from sessionlake.history import batch_as_of, status
from sessionlake.history.batch_as_of import as_of_batch
from sessionlake.ledger import books, positions, progress
from sessionlake.ledger.books import SUMS, VERSIONS, LedgerReader, iterate_rows_as_dicts, read_stored_sums
from sessionlake.ledger.positions import SCHEMA, compute_sums_of_old_entries, sum_ledger_entries, verify_ledger_sums
from sessionlake.ledger.progress import (
    find_ledger_entry_of_message,
    read_change_progress,
    read_last_batch_number,
    read_last_merged_batch_number,
    read_last_offsets,
    read_layer_offsets,
    read_ledger_entries_after_batch,
)
from sessionlake.ledger.retained import RetentionRecord
from sessionlake.operations.retention.ledger import find_end_of_removable_entries
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.silver.decisions import _read_followed_decisions
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from sessionlake.streaming.restored_tables import read_versions_left_by_batches
from support.seeds import seeds
from support.tables import Tables

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PLACES = [("a", 0), ("a", 1), ("b", 0)]
PROCESSOR = "processor-p"
MINUTES = "gold.metrics_1m"
TABLES = (CHANGES, EVENTS, QUARANTINE, ROWS, SESSIONS, SNAPSHOTS, MINUTES)
COLUMNS = [*(name for name in SCHEMA.names if name not in {"until", "format"})]
ROW = pa.schema([SCHEMA.field(n) for n in COLUMNS if n not in {*SUMS, VERSIONS}] + [("source_from", pa.int64())])


class Ledger:
    """A ledger as layers write it, which are rebuilt now and then."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd, self.now, self.rows = rnd, NOON, list[dict[str, Any]]()
        self.reached = {layer: dict.fromkeys(PLACES, -1) for layer in ("bronze", "silver", PROCESSOR)}
        self.number = dict.fromkeys(("bronze", "silver", "gold", PROCESSOR, "publish:t:u"), -1)
        self.app = {layer: f"{layer}-0" for layer in self.number}
        self.merged, self.version = -1, dict.fromkeys(TABLES, 0)

    def grow(self, count: int) -> Ledger:
        for _ in range(count):
            self.now += timedelta(seconds=self.rnd.choice([0, 1, 40, 4_000]))
            kind = self.rnd.choice(
                ["bronze", "bronze", "silver", "silver", "merge", "gold", "more", PROCESSOR, "publish"]
            )
            if kind == "more" and self.rnd.random() < 0.3:
                self.rebuild()
            elif kind == "merge":
                self.merge()
            elif kind == "bronze":
                self.take_in("bronze", {place: self.rnd.randint(0, 5) for place in PLACES})
            elif kind in self.reached:
                bronze, own = self.reached["bronze"], self.reached[kind]
                self.take_in(kind, {place: self.rnd.randint(0, bronze[place] - own[place]) for place in PLACES})
            elif kind == "gold":
                if self.rnd.random() < 0.3:  # dropped and made anew
                    self.version[MINUTES] = 0
                told = {"messages": self.rnd.randint(0, 3), "source_to": self.number["silver"]}
                self.add("gold", outputs=self.written(self.rnd.choice([[], [MINUTES]])), **told)
            elif kind == "publish":
                self.number["publish:t:u"] += self.rnd.randint(0, 2)
                self.add("publish:t:u", messages=2, source_to=self.version[ROWS])
        return self

    def add(self, layer: str, app: str | None = None, batch: int | None = None, **fields: Any) -> None:
        if batch is None:
            self.number[layer] += 1
            batch = self.number[layer]
        messages = fields.get("messages", 0)
        known = dict.fromkeys(COUNTS, 0) | {
            "messages": 0,
            "applied": messages,
            "offsets": [],
            "outputs": [],
            "decisions": [],
        }
        own = {"layer": layer, "app_id": app or self.app[layer], "batch_id": batch, "committed_at": self.now}
        self.rows.append(known | own | {"source_to": None, "source_from": None, "parts": messages} | fields)

    def take_in(self, layer: str, come: dict[tuple[str, int], int]) -> None:
        reached = self.reached[layer]
        ranges = [
            {"topic": t, "partition": p, "first": reached[t, p] + 1, "last": reached[t, p] + n, "messages": n}
            for (t, p), n in come.items()
            if n
        ]
        for (topic, partition), count in come.items():
            reached[topic, partition] += count
        total = sum(come.values())
        dropped, lost = self.rnd.randint(0, total), self.rnd.choice([0, 0, 0, 1]) if total else 0
        counts = {"messages": total, "applied": total - dropped, "duplicates": dropped - lost * (dropped > 0)}
        decided = [
            {"topic": "a", "partition": 0, "session_id": "s", "offset": len(self.rows), "decision": "skip-message"}
        ]
        taken = decided if layer == "silver" and self.rnd.random() < 0.3 else []
        tables = [CHANGES, *self.rnd.sample([EVENTS, QUARANTINE], self.rnd.randint(0, 2))] if layer == "silver" else []
        self.add(layer, offsets=ranges, decisions=taken, outputs=self.written(tables), **counts)

    def written(self, tables: Sequence[str]) -> list[dict[str, Any]]:
        for table in tables:
            self.version[table] += 1
        return [{"table": table, "version": self.version[table], "rows": self.rnd.randint(1, 9)} for table in tables]

    def merge(self) -> None:
        last = self.number["silver"]
        if last > self.merged:
            tables = [ROWS, SESSIONS, *([SNAPSHOTS] if self.rnd.random() < 0.3 else [])]
            own = {"source_from": self.merged + 1, "source_to": last, "outputs": self.written(tables)}
            self.add("silver_tables", f"{self.app['silver']}:silver_tables", last, messages=3, **own)
            self.merged = last

    def rebuild(self) -> None:
        self.merge()
        name, batch = f"{REBUILD}{len(self.rows)}", self.number["silver"] + 1
        whole = [
            {"topic": topic, "partition": part, "first": 0, "last": last, "messages": last + 1}
            for (topic, part), last in self.reached["silver"].items()
            if last >= 0
        ]
        total = sum(item["messages"] for item in whole)
        if self.rnd.random() < 0.5:
            self.add("gold", f"{name}:gold", batch)
            self.number["gold"], self.app["gold"] = -1, f"gold-{len(self.rows)}"
        self.add("silver", name, offsets=whole, messages=total, outputs=self.written([CHANGES, ROWS, SESSIONS]))
        self.add("silver_tables", f"{name}:silver_tables", batch, source_from=batch, source_to=batch, messages=total)
        self.merged, self.app["silver"] = batch, f"silver-{len(self.rows)}"

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, ROW)


def in_short(rows: pa.Table, sums: pa.Table) -> Tables:
    return Tables({LEDGER: rows, POSITIONS: sums})


def whole(rows: pa.Table) -> Tables:
    return Tables({LEDGER: rows})


def entries_of(reader: Tables) -> Callable[..., Any]:
    return LedgerReader(reader, *COLUMNS).read_entries


def outcome(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except LakeError as error:
        return str(error)


def left(reader: Tables) -> dict[str, tuple[datetime, int]]:
    """The version that each table was left at by the last that wrote to it, and when."""
    return {table: max(known) for table, known in read_versions_left_by_batches(reader).items()}


def totals(reader: Tables, settings: Settings, patch: pytest.MonkeyPatch) -> list[Any]:
    """All that is asked of a ledger but what single entries tell."""
    patch.setattr(Lake, "reader", lambda *_: reader)
    patch.setattr(Lake, "exists", lambda *_: True)
    patch.setattr(status, "read_kafka_end_offsets", lambda _: None)
    layers = sorted({row["layer"] for table in reader.tables.values() for row in table.to_pylist()} - {""})
    found: list[Any] = [
        read_layer_offsets(reader),
        read_last_merged_batch_number(reader),
        _read_followed_decisions(reader),
        left(reader),
        read_change_progress(reader),
    ]
    found += [replace(layer, age_seconds=None) for layer in status.layer_statuses(reader, settings)]
    for layer in layers:
        found += [read_last_offsets(reader, layer), read_last_batch_number(reader, layer)]
        found.append(outcome(partial(refuse_new_checkpoint_over_data, None, Lake(settings), settings, layer)))
    return [
        *found,
        [
            row["batch_id"]
            for row in read_ledger_entries_after_batch(
                reader, "silver", read_last_merged_batch_number(reader), "outputs"
            )
        ],
    ]


def answers(reader: Tables, settings: Settings, patch: pytest.MonkeyPatch) -> list[Any]:
    """All that anyone asks of a ledger."""
    patch.setattr(Lake, "reader", lambda *_: reader)
    patch.setattr(Lake, "exists", lambda *_: True)
    patch.setattr(status, "read_kafka_end_offsets", lambda _: None)
    rows = reader.tables[LEDGER].to_pylist()
    layers = sorted({row["layer"] for row in rows})
    last = read_last_batch_number(reader, "silver") or -1
    txns = {Txn(row["app_id"], row["batch_id"] - back) for row in rows[-3:] for back in (0, 1)}
    found: list[Any] = [
        read_layer_offsets(reader),
        read_last_merged_batch_number(reader),
        _read_followed_decisions(reader),
        left(reader),
        read_change_progress(reader),
    ]
    found += [replace(layer, age_seconds=None) for layer in status.layer_statuses(reader, settings)]
    for layer in layers:
        found += [read_last_offsets(reader, layer), read_last_batch_number(reader, layer)]
        found += [read_last_offsets(reader, layer, txn) for txn in sorted(txns, key=str)]
        found.append(outcome(partial(refuse_new_checkpoint_over_data, None, Lake(settings), settings, layer)))
    for batch in range(-1, last + 2, max(1, last // 5)):
        found.append([row["batch_id"] for row in read_ledger_entries_after_batch(reader, "silver", batch, "outputs")])
        point = outcome(partial(as_of_batch, None, settings, batch))
        found.append(
            point if isinstance(point, str) else (point.requested_batch, point.batch, point.versions, point.rebuilt)
        )
    for offset, near in ((3, None), (11, NOON + timedelta(hours=5))):
        found += [
            find_ledger_entry_of_message(reader, layer, "a", 0, offset, near)
            for layer in ("bronze", "silver", PROCESSOR)
        ]
    return found


@pytest.fixture
def configured(settings: Settings) -> Settings:
    return settings.model_copy(update={"processors": (ProcessorSettings(name="p", target="a:B"),)})


@pytest.mark.parametrize("at_once", [0, 25])
def test_a_ledger_of_more_rows_than_fit_into_memory_gives_the_same_answers(at_once, configured, monkeypatch):
    rows = Ledger(random.Random(2)).grow(70).table()
    assert any(row["app_id"].startswith(REBUILD) for row in rows.to_pylist())
    expected = answers(whole(rows), configured, monkeypatch)
    monkeypatch.setattr(books, "_AT_ONCE", at_once)
    parts = pa.concat_tables([rows.slice(start, 10) for start in range(0, rows.num_rows, 10)])
    assert len(parts.to_batches()) > at_once // 10 + 1
    assert answers(whole(parts), configured, monkeypatch) == expected


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_sums_up_to_any_moment_give_the_answers_of_the_whole_ledger(seed, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(rnd.choice([5, 30, 70]))
    rows, times = ledger.table(), sorted({row["committed_at"] for row in ledger.rows})
    expected = answers(whole(rows), configured, monkeypatch)
    early, late = sorted(rnd.choices(times, k=2))
    sums = sum_ledger_entries(entries_of(whole(rows)), early)
    for until in (early, late, times[-1] + timedelta(seconds=1)):
        sums = (
            sum_ledger_entries(entries_of(in_short(rows, sums)), until)
            if sums.num_rows
            else sum_ledger_entries(entries_of(whole(rows)), until)
        )
        assert sums.to_pylist() == sum_ledger_entries(entries_of(whole(rows)), until).to_pylist()
        reader = in_short(rows, sums)
        assert LedgerReader(reader).uses_sums_of_old_entries == (sums.num_rows > 0)
        assert answers(reader, configured, monkeypatch) == expected
        assert verify_ledger_sums(reader) == (sums.num_rows > 0)


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_a_ledger_that_went_on_is_reported_by_older_sums(seed, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(60)
    until = ledger.now
    sums = sum_ledger_entries(entries_of(whole(ledger.table())), until)
    ledger.now += timedelta(seconds=1)
    rows = ledger.grow(60).table()
    assert LedgerReader(in_short(rows, sums)).uses_sums_of_old_entries
    assert answers(in_short(rows, sums), configured, monkeypatch) == answers(whole(rows), configured, monkeypatch)


@pytest.mark.parametrize("seed", seeds(1, 4))
@pytest.mark.parametrize("what", ["late", "restored", "emptied", "another format"])
def test_sums_that_do_not_go_with_the_ledger_are_not_gone_by(seed, what, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(60)
    sums = sum_ledger_entries(entries_of(whole(ledger.table())), ledger.rows[40]["committed_at"])
    if what == "late":  # an entry whose clock was set back
        ledger.now = NOON
        ledger.take_in("bronze", dict.fromkeys(PLACES, 1))
    elif what == "restored":
        del ledger.rows[20:]
        ledger.now += timedelta(days=1)
        ledger.grow(rnd.choice([0, 3, 40]))
    elif what == "emptied":
        ledger.rows.clear()
        ledger.grow(rnd.choice([0, 3, sums.num_rows]))
    else:
        sums = sums.set_column(sums.schema.names.index("format"), "format", pa.array([0] * sums.num_rows, pa.int32()))
    rows = ledger.table()
    assert not LedgerReader(in_short(rows, sums)).uses_sums_of_old_entries
    assert answers(in_short(rows, sums), configured, monkeypatch) == answers(whole(rows), configured, monkeypatch)


def removed_before(rows: pa.Table, cut: datetime) -> pa.Table:
    return rows.filter(pc.field("committed_at") >= cut)


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_a_ledger_that_was_cut_once_and_again_has_the_sums_of_the_whole(seed, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(rnd.choice([30, 70]))
    rows = ledger.table()
    stored = pa.table({name: pa.array([], kind.type) for name, kind in zip(SCHEMA.names, SCHEMA, strict=True)})
    left = rows
    for _ in range(2):
        wanted = rnd.choice(ledger.rows)["committed_at"]
        cut = find_end_of_removable_entries(in_short(left, stored), configured, wanted)
        if cut is None:
            assert wanted < read_stored_sums(in_short(left, stored)).removed_before
            continue
        stored = compute_sums_of_old_entries(in_short(left, stored), cut)
        expected = totals(whole(ledger.table()), configured, monkeypatch)
        assert totals(in_short(left, stored), configured, monkeypatch) == expected  # not removed yet
        left = removed_before(left, cut)
        assert totals(in_short(left, stored), configured, monkeypatch) == expected
        ledger.now += timedelta(seconds=1)
        held = len(ledger.rows)
        left = pa.concat_tables([left, ledger.grow(rnd.choice([0, 40])).table().slice(held)])
    reader, known = in_short(left, stored), whole(ledger.table())
    copies = sum_ledger_entries(LedgerReader(reader, *COLUMNS, include_carried=False).read_entries, ledger.now)
    reader = in_short(left, pa.concat_tables([stored, copies]))
    assert totals(reader, configured, monkeypatch) == totals(known, configured, monkeypatch)
    assert verify_ledger_sums(reader) == (copies.num_rows > 0)
    for batch in range((read_last_batch_number(known, "silver") or -1) + 1):
        was, now = (_told_of(table, configured, batch, monkeypatch) for table in (known, reader))
        assert now == was or "retention has removed rows of ops.ledger" in str(now) or isinstance(was, str)


def test_as_of_a_batch_a_table_that_rests_has_its_last_version_and_the_ledger_is_not_read_whole(
    configured, monkeypatch
):
    ledger = Ledger(random.Random(1))
    for number in range(12):
        ledger.now += timedelta(days=20)
        ledger.add("silver", outputs=ledger.written([CHANGES] if number else [CHANGES, EVENTS]))
        merged = ledger.written([SESSIONS] if number else [SESSIONS, ROWS])
        ledger.add("silver_tables", "merges", number, source_from=number, source_to=number, outputs=merged)
    rows = ledger.table()
    reader = in_short(rows, sum_ledger_entries(entries_of(whole(rows)), ledger.now + timedelta(seconds=1)))
    read: list[set[str]] = []
    batches = reader.read_batches

    def noted(table: str, *conditions: Any, **how: Any) -> Any:
        read.extend([{name for name, _, _ in conditions}] if table == LEDGER else [])
        return batches(table, *conditions, **how)

    monkeypatch.setattr(reader, "read_batches", noted)
    monkeypatch.setattr(Lake, "reader", lambda *_: reader)
    monkeypatch.setattr(Lake, "exists", lambda *_: True)
    point = as_of_batch(None, configured, 10)
    assert (point.batch, point.versions) == (10, {SESSIONS: 11, ROWS: 1})
    assert read
    assert all("committed_at" in names for names in read)


def _told_of(reader: Tables, settings: Settings, batch: int, patch: pytest.MonkeyPatch) -> Any:
    cut = {LEDGER: RetentionRecord(LEDGER, NOON)}
    patch.setattr(batch_as_of, "read_removal_records_without_limits", lambda _: cut)
    patch.setattr(Lake, "reader", lambda *_: reader)
    point = outcome(partial(as_of_batch, None, settings, batch))
    return point if isinstance(point, str) else (point.batch, point.versions, point.rebuilt)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_an_entry_by_a_clock_that_was_set_back_behind_a_cut_counts_all_the_same(seed, configured, monkeypatch):
    ledger = Ledger(random.Random(seed)).grow(60)
    cut = find_end_of_removable_entries(whole(ledger.table()), configured, ledger.rows[-9]["committed_at"])
    stored = compute_sums_of_old_entries(whole(ledger.table()), cut)
    ledger.now = NOON
    ledger.take_in("bronze", dict.fromkeys(PLACES, 1))
    left = pa.concat_tables([removed_before(ledger.table(), cut), ledger.table().slice(len(ledger.rows) - 1)])
    expected = totals(whole(ledger.table()), configured, monkeypatch)
    assert totals(in_short(left, stored), configured, monkeypatch) == expected


def test_a_batch_that_is_made_once_more_though_it_is_in_the_sums_is_left_out():
    ledger = Ledger(random.Random(0))
    for _ in range(3):
        ledger.now += timedelta(seconds=1)
        ledger.take_in("bronze", dict.fromkeys(PLACES, 2))
    sums = sum_ledger_entries(entries_of(whole(ledger.table())), ledger.now + timedelta(seconds=1))
    reader = in_short(ledger.table(), sums)
    assert [read_last_offsets(reader, "bronze", Txn("bronze-0", batch))["a", 0] for batch in (1, 2, 3)] == [1, 3, 5]
    assert read_last_offsets(reader, "bronze", Txn("bronze-0", 0)) == {}


def test_wrong_sums_are_noticed_by_who_reads_all_of_the_ledger():
    ledger = Ledger(random.Random(3)).grow(40)
    sums = sum_ledger_entries(entries_of(whole(ledger.table())), ledger.now)
    wrong = sums.set_column(3 - 1, "batch_id", pa.array([n + 1 for n in sums["batch_id"].to_pylist()], pa.int64()))
    assert verify_ledger_sums(in_short(ledger.table(), sums))
    with pytest.raises(
        LakeError, match=r"ops\.positions, the copy of the ledger's sums, differs from ops\.ledger\..* Remove the table"
    ):
        verify_ledger_sums(in_short(ledger.table(), wrong))


def test_a_ledger_is_summed_in_bounded_memory(monkeypatch):
    rows = Ledger(random.Random(4)).grow(200).table()
    until = NOON + timedelta(days=9)
    at_once = sum_ledger_entries(entries_of(whole(rows)), until)
    monkeypatch.setattr(positions, "_AT_ONCE", 7)
    parts = Tables({LEDGER: pa.concat_tables([rows.slice(n, 3) for n in range(0, rows.num_rows, 3)])})
    assert sum_ledger_entries(entries_of(parts), until).to_pylist() == at_once.to_pylist()


def test_rows_that_sums_are_of_are_those_that_the_ledger_has():
    rows = Ledger(random.Random(5)).grow(50).table()
    sums = sum_ledger_entries(entries_of(whole(rows)), NOON + timedelta(days=9))
    assert sum(row["batches"] for row in iterate_rows_as_dicts(sums.to_batches())) == rows.num_rows
    assert sums.num_rows < rows.num_rows
    assert progress.read_last_batch_number(in_short(rows, sums), "bronze") == progress.read_last_batch_number(
        whole(rows), "bronze"
    )
