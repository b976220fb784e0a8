"""What is read of the ledger in short is what reading all of it gives, whatever the sums were made of, and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.config import ProcessorSettings, Settings
from sessionlake.errors import LakeError
from sessionlake.history import status
from sessionlake.history.batch_as_of import as_of_batch
from sessionlake.lake import positions, progress
from sessionlake.lake.books import Books, rows_of
from sessionlake.lake.ledger import COUNTS, REBUILD
from sessionlake.lake.names import CHANGES, EVENTS, LEDGER, POSITIONS, QUARANTINE, ROWS, SESSIONS, SNAPSHOTS
from sessionlake.lake.positions import SCHEMA, require_true, summed
from sessionlake.lake.progress import batches_after, covering, ends, last_batch, last_merged, spans
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.silver.decisions import _followed
from sessionlake.streaming.guards import refuse_fresh_checkpoint
from support.tables import Tables

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PLACES = [("a", 0), ("a", 1), ("b", 0)]
PROCESSOR = "processor-p"
COLUMNS = [*(name for name in SCHEMA.names if name not in {"until", "format"})]
ROW = pa.schema(
    [SCHEMA.field(n) for n in COLUMNS if n not in {"batches", "unaccounted"}] + [("source_from", pa.int64())]
)


class Ledger:
    """A ledger as layers write it, which are rebuilt now and then."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd, self.now, self.rows = rnd, NOON, list[dict[str, Any]]()
        self.reached = {layer: dict.fromkeys(PLACES, -1) for layer in ("bronze", "silver", PROCESSOR)}
        self.number = dict.fromkeys(("bronze", "silver", "gold", PROCESSOR, "publish:t:u"), -1)
        self.app = {layer: f"{layer}-0" for layer in self.number}
        self.merged, self.version = -1, dict.fromkeys((CHANGES, EVENTS, QUARANTINE, ROWS, SESSIONS, SNAPSHOTS), 0)

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
                self.add("gold", outputs=[], messages=self.rnd.randint(0, 3), source_to=self.number["silver"])
            elif kind == "publish":
                self.number["publish:t:u"] += self.rnd.randint(0, 2)
                self.add("publish:t:u", messages=2, source_to=self.version[ROWS])
        return self

    def add(self, layer: str, app: str | None = None, batch: int | None = None, **fields: Any) -> None:
        if batch is None:
            self.number[layer] += 1
            batch = self.number[layer]
        messages = fields.get("messages", 0)
        known = dict.fromkeys(COUNTS, 0) | {"applied": messages, "offsets": [], "outputs": [], "decisions": []}
        own = {"layer": layer, "app_id": app or self.app[layer], "batch_id": batch, "committed_at": self.now}
        self.rows.append(known | own | {"source_to": None, "source_from": None} | fields)

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
        decided = [{"topic": "a", "session_id": "s", "offset": len(self.rows), "decision": "skip_message"}]
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


def entries_of(reader: Tables) -> Callable[[], Any]:
    return Books(reader, *COLUMNS).entries


def outcome(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except LakeError as error:
        return str(error)


def answers(reader: Tables, settings: Settings, patch: pytest.MonkeyPatch) -> list[Any]:
    """All that anyone asks of a ledger."""
    patch.setattr(Lake, "reader", lambda *_: reader)
    patch.setattr(Lake, "exists", lambda *_: True)
    patch.setattr(status, "kafka_ends", lambda _: None)
    rows = reader.tables[LEDGER].to_pylist()
    layers = sorted({row["layer"] for row in rows})
    last = last_batch(reader, "silver") or -1
    txns = {Txn(row["app_id"], row["batch_id"] - back) for row in rows[-3:] for back in (0, 1)}
    found: list[Any] = [spans(reader), last_merged(reader), _followed(reader)]
    found += [replace(layer, age_seconds=None) for layer in status.layer_statuses(reader, settings)]
    for layer in layers:
        found += [ends(reader, layer), last_batch(reader, layer)]
        found += [ends(reader, layer, txn) for txn in sorted(txns, key=str)]
        found.append(outcome(partial(refuse_fresh_checkpoint, None, Lake(settings), settings, layer)))
    for batch in range(-1, last + 2, max(1, last // 5)):
        found.append([row["batch_id"] for row in batches_after(reader, "silver", batch, "outputs")])
        point = outcome(partial(as_of_batch, None, settings, batch))
        found.append(point if isinstance(point, str) else (point.asked, point.batch, point.versions, point.rebuilt))
    for offset, near in ((3, None), (11, NOON + timedelta(hours=5))):
        found += [covering(reader, layer, "a", 0, offset, near) for layer in ("bronze", "silver", PROCESSOR)]
    return found


@pytest.fixture
def configured(settings: Settings) -> Settings:
    return settings.model_copy(update={"processors": (ProcessorSettings(name="p", target="a:B"),)})


@pytest.mark.parametrize("seed", range(20))
def test_sums_up_to_any_moment_give_the_answers_of_the_whole_ledger(seed, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(rnd.choice([5, 30, 70]))
    rows, times = ledger.table(), sorted({row["committed_at"] for row in ledger.rows})
    expected = answers(whole(rows), configured, monkeypatch)
    early, late = sorted(rnd.choices(times, k=2))
    sums = summed(entries_of(whole(rows)), early)
    for until in (early, late, times[-1] + timedelta(seconds=1)):
        sums = (
            summed(entries_of(in_short(rows, sums)), until) if sums.num_rows else summed(entries_of(whole(rows)), until)
        )
        assert sums.to_pylist() == summed(entries_of(whole(rows)), until).to_pylist()
        reader = in_short(rows, sums)
        assert Books(reader).in_short == (sums.num_rows > 0)
        assert answers(reader, configured, monkeypatch) == expected
        assert require_true(reader) == (sums.num_rows > 0)


@pytest.mark.parametrize("seed", range(10))
def test_a_ledger_that_went_on_is_told_by_older_sums(seed, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(60)
    until = ledger.now
    sums = summed(entries_of(whole(ledger.table())), until)
    ledger.now += timedelta(seconds=1)
    rows = ledger.grow(60).table()
    assert Books(in_short(rows, sums)).in_short
    assert answers(in_short(rows, sums), configured, monkeypatch) == answers(whole(rows), configured, monkeypatch)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("what", ["late", "restored", "emptied", "another format"])
def test_sums_that_do_not_go_with_the_ledger_are_not_gone_by(seed, what, configured, monkeypatch):
    rnd = random.Random(seed)
    ledger = Ledger(rnd).grow(60)
    sums = summed(entries_of(whole(ledger.table())), ledger.rows[40]["committed_at"])
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
    assert not Books(in_short(rows, sums)).in_short
    assert answers(in_short(rows, sums), configured, monkeypatch) == answers(whole(rows), configured, monkeypatch)


def test_a_batch_that_is_made_once_more_though_it_is_in_the_sums_is_left_out():
    ledger = Ledger(random.Random(0))
    for _ in range(3):
        ledger.now += timedelta(seconds=1)
        ledger.take_in("bronze", dict.fromkeys(PLACES, 2))
    sums = summed(entries_of(whole(ledger.table())), ledger.now + timedelta(seconds=1))
    reader = in_short(ledger.table(), sums)
    assert [ends(reader, "bronze", Txn("bronze-0", batch))["a", 0] for batch in (1, 2, 3)] == [1, 3, 5]
    assert ends(reader, "bronze", Txn("bronze-0", 0)) == {}


def test_wrong_sums_are_noticed_by_who_reads_all_of_the_ledger():
    ledger = Ledger(random.Random(3)).grow(40)
    sums = summed(entries_of(whole(ledger.table())), ledger.now)
    wrong = sums.set_column(3 - 1, "batch_id", pa.array([n + 1 for n in sums["batch_id"].to_pylist()], pa.int64()))
    assert require_true(in_short(ledger.table(), sums))
    with pytest.raises(LakeError, match=r"ops\.positions does not hold the sums of ops\.ledger: remove the table"):
        require_true(in_short(ledger.table(), wrong))


def test_a_ledger_is_summed_in_bounded_memory(monkeypatch):
    rows = Ledger(random.Random(4)).grow(200).table()
    until = NOON + timedelta(days=9)
    at_once = summed(entries_of(whole(rows)), until)
    monkeypatch.setattr(positions, "_AT_ONCE", 7)
    parts = Tables({LEDGER: pa.concat_tables([rows.slice(n, 3) for n in range(0, rows.num_rows, 3)])})
    assert summed(entries_of(parts), until).to_pylist() == at_once.to_pylist()


def test_rows_that_sums_are_of_are_those_that_the_ledger_has():
    rows = Ledger(random.Random(5)).grow(50).table()
    sums = summed(entries_of(whole(rows)), NOON + timedelta(days=9))
    assert sum(row["batches"] for row in rows_of(sums.to_batches())) == rows.num_rows
    assert sums.num_rows < rows.num_rows
    assert progress.last_batch(in_short(rows, sums), "bronze") == progress.last_batch(whole(rows), "bronze")
