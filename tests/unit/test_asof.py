"""Any session's table at any moment equals the truth that has been told no more than that moment knows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise, product
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from _pytest.mark import ParameterSet

from sessionlake.delta.storage.reading import Condition
from sessionlake.errors import LakeError, UsageError
from sessionlake.history.asof import compute_session_table, find_session, session_as_of
from sessionlake.integrity.clock import PartitionStreamTime
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.ledger.retained import _SCHEMA
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.protocol.silence import Silence, encode_silences
from sessionlake.protocol.types import Row
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver.fold.schemas import PROGRESS_SCHEMA, SilverPayloadKind, build_changes_schema
from sessionlake.silver.stream_times import open_stored_stream_times
from sessionlake.silver.tables.as_of import SessionMoment
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, plain, truth_of
from support.seeds import long_beyond, seeds
from support.snapshots import Cutter
from support.streams import COLUMNS, LIGHT, SESSION_TIMEOUT, WILD, Fact, StreamMaker, cut, messages_of, with_silences
from support.tables import Tables

Lane = tuple[str, int]
MOMENTS = 12
"""Stream times that are asked for, of a topic-partition."""
UNTOLD: dict[str, Row] = {"untold": {}}
_COLUMNS = ("topic", "partition", "offset", "timestamp")


def ledger(ends: dict[Lane, int], merged: int) -> pa.Table:
    """Silver has taken in everything up to these ends; `merged` of its batches are in the tables."""
    ranges = [
        {"topic": topic, "partition": part, "first": 0, "last": end, "messages": end + 1}
        for (topic, part), end in ends.items()
    ]
    known = {"app_id": "silver", "batch_id": 0, "committed_at": datetime(2026, 1, 1, tzinfo=UTC)}
    rows = [
        known | {"layer": "silver", "source_to": None, "offsets": ranges},
        known | {"layer": "silver_tables", "source_to": merged - 1, "offsets": ranges[:0]},
    ]
    return pa.Table.from_pylist(rows)


def lake(
    rnd: random.Random, facts: Sequence[Fact], capture: CaptureSettings, interval: int, *, lags: bool = True
) -> Tables:
    """Silver after some batches, made by this version or the one before; the last may not be merged yet, if it lags."""
    folder = Folder(capture, 2, rnd, interval=interval)
    batches = list(cut(rnd, [*facts], 6))
    for batch in batches:
        folder.batch(batch)
    merged = rnd.randint(1, len(batches)) if lags else len(batches)
    uncounted = rnd.choice([0, merged // 2, merged])
    cutter = Cutter(folder, capture, uncounted, unlisted=rnd.choice([uncounted // 2, uncounted]))
    bounds = sorted({0, *rnd.sample(range(merged), rnd.randint(0, min(2, merged))), merged})
    for start, end in pairwise(bounds):
        cutter.make(start, end)
    messages = messages_of(facts)
    columns = list(zip(*messages, strict=True))
    times = pa.array([ms * 1000 for ms in columns[3]]).cast(pa.timestamp("us", tz="UTC"))
    told = pa.table({"value": [encode_silences([fact for fact in facts if isinstance(fact, Silence)])]})
    raw = pa.table([*columns[:3], times, columns[5], times], names=[*_COLUMNS, "value", "ingested_at"])
    raw = pa.concat_tables([raw, told.cast(pa.schema([raw.schema.field("value")]))], promote_options="default")
    return Tables(
        {
            "bronze.messages": raw,
            "silver.session_changes": folder.table(
                SilverPayloadKind.CHANGES, build_changes_schema(capture.declared_columns)
            ),
            "silver.session_cuts": cutter.cuts,
            "silver.session_progress": folder.table(SilverPayloadKind.PROGRESS, PROGRESS_SCHEMA),
            "silver.session_snapshots": cutter.found,
            "silver.session_snapshot_index": cutter.index,
            "ops.ledger": ledger({(m.topic, m.partition): m.offset for m in messages}, merged),
        },
    )


def scene(seed: int, integrity: Integrity, *, silent: bool = False) -> tuple[Tables, Settings, list[Fact]]:
    rnd = random.Random(seed)
    capture = CaptureSettings(
        columns=COLUMNS, integrity=integrity, on_violation=rnd.choice([OnViolation.ISOLATE, OnViolation.RECORD]),
        lateness=rnd.choice(["0 s", "3 s", "10 m"]), gap_timeout="5 s", max_held_messages=rnd.choice([4, 10_000]),
    )  # fmt: skip
    messages = StreamMaker(rnd, rnd.choice([LIGHT, WILD])).make(rnd.choice([20, 40]))
    facts = with_silences(rnd, messages) if silent else [*messages]
    tables = lake(rnd, facts, capture, rnd.choice([1, 3_000, 20_000, 600_000]))
    return tables, Settings(capture=capture), facts


def lanes(facts: Sequence[Fact]) -> dict[Lane, list[Fact]]:
    found: dict[Lane, list[Fact]] = {}
    for fact in facts:
        found.setdefault((fact.topic, fact.partition), []).append(fact)
    return found


def truth(facts: Sequence[Fact], settings: Settings) -> dict[str, dict[str, Row]]:
    return {session: rows for (_, _, session), rows in truth_of(facts, settings.capture).session_rows.items()}


def at(
    tables: Tables, settings: Settings, place: Lane, session: str, moment: SessionMoment, *, untold: bool = False
) -> dict[str, Row] | None:
    """The table by row id; None before it begins; `UNTOLD` if it may be so, and bronze has no more what tells it."""
    try:
        found = compute_session_table(tables, settings, find_session(tables, settings, session, *place), moment)
    except LakeError as error:
        if untold and "so stream time at offset" in str(error):
            return UNTOLD
        if "has no table yet" not in str(error):
            raise
        return None
    return {row.pop("row_id"): row for row in plain(found)}


def assert_equal(found: dict[str, Row] | None, expected: dict[str, Row] | None, where: object) -> None:
    assert (where, repr(sorted((found or {}).items()))) == (where, repr(sorted((expected or {}).items())))


def cases(numbers: range, *usual: Integrity) -> list[ParameterSet]:
    """Each stream in each class; usually the first one alone, in these classes."""
    return long_beyond({(numbers[0], one) for one in usual}, product(numbers, Integrity))


@pytest.mark.parametrize("integrity", Integrity)
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_as_of_every_offset_it_is_what_the_messages_up_to_there_make(seed: int, integrity: Integrity) -> None:
    tables, settings, facts = scene(seed, integrity, silent=True)
    for (topic, partition), lane in lanes(facts).items():
        sessions = truth(lane, settings)
        for count, message in enumerate(lane, 1):
            if isinstance(message, Silence):
                continue
            expected, offset = truth(lane[:count], settings), message.offset
            for session in sessions:
                found = at(tables, settings, (topic, partition), session, SessionMoment(offset=offset))
                assert_equal(found, expected.get(session), (topic, partition, session, offset))


@pytest.mark.parametrize(("seed", "integrity"), cases(range(100, 103), Integrity.WINDOW, Integrity.ONCE))
def test_as_of_any_stream_time_it_is_what_had_come_by_then(seed: int, integrity: Integrity) -> None:
    tables, settings, facts = scene(seed, integrity)
    for (topic, partition), lane in ((place, messages_of(lane)) for place, lane in lanes(facts).items()):
        times = sorted({m.timestamp + d for m in lane for d in (-1, 0, 1)} | {m.timestamp + 3_600_001 for m in lane})
        clock = [max(m.timestamp for m in lane[: i + 1]) for i in range(len(lane))]
        for ts in random.Random(seed).sample(times, min(len(times), MOMENTS)):
            if ts > clock[-1]:
                continue
            known = [message for message, now in zip(lane, clock, strict=True) if now <= ts]
            # What is no message lets time pass all the same.
            known.append(KafkaMessage(topic, partition, (known or lane)[-1].offset + 1, ts, b"", b""))
            expected = truth(known, settings)
            for session in truth(lane, settings):
                found = at(tables, settings, (topic, partition), session, SessionMoment(ts=ts))
                assert_equal(found, expected.get(session), (topic, partition, session, ts))


def without_first(tables: Tables, lane: Sequence[Fact], last: int) -> Tables:
    """The lake, of which retention has removed a topic-partition's messages up to an offset."""
    place, gone = lane[0].topic, [m for m in messages_of(lane) if m.offset <= last]
    head = {"table": "bronze.messages", "before": datetime(2026, 1, 1, tzinfo=UTC), "removed": len(gone), "pending": 0}
    highest = datetime.fromtimestamp(max(m.timestamp for m in gone) / 1000, UTC)
    limit = {"table": "bronze.messages", "topic": place, "partition": lane[0].partition, "limit": last}
    rows = [row | {"batch": -1, "format": 2} for row in (head, limit | {"highest_timestamp": highest})]
    raw = tables.tables["bronze.messages"]
    own = (pc.field("topic") == place) & (pc.field("partition") == lane[0].partition) & (pc.field("offset") <= last)
    kept = raw.filter(~pc.coalesce(own, pc.scalar(value=False)))
    return Tables(tables.tables | {"bronze.messages": kept, "ops.retained": pa.Table.from_pylist(rows, _SCHEMA)})


@pytest.mark.parametrize(("seed", "integrity"), cases(range(4), Integrity.ORDER, Integrity.STRICT))
def test_as_of_an_offset_that_bronze_has_no_more_only_what_time_alone_released_is_not_reported(
    seed: int, integrity: Integrity
) -> None:
    whole, settings, facts = scene(seed, integrity, silent=True)
    for (topic, partition), lane in lanes(facts).items():
        messages = messages_of(lane)
        tables = without_first(whole, lane, messages[-1].offset)
        changes = plain(tables.tables["silver.session_changes"])
        by_time = {tuple(row[name] for name in SESSION) for row in changes if row["_applied_by"] is None}
        for message in messages[:-1]:
            expected = truth(lane[: lane.index(message) + 1], settings)
            for session in truth(lane, settings):
                moment = SessionMoment(offset=message.offset)
                own = topic, partition, session
                found = at(tables, settings, (topic, partition), session, moment, untold=own in by_time)
                if found != UNTOLD:
                    assert_equal(found, expected.get(session), (topic, partition, session, moment))


def test_as_of_a_time_in_a_silence_it_is_reported_if_silver_has_noted_that(tmp_path: Path) -> None:
    rnd, capture = random.Random(1), CaptureSettings(columns=COLUMNS, on_violation=OnViolation.ISOLATE)
    messages = StreamMaker(rnd, LIGHT).make(20)
    ends = {place: messages_of(lane)[-1].offset for place, lane in lanes(messages).items()}
    until = max(message.timestamp for message in messages) + SESSION_TIMEOUT + 1
    facts = [*messages, *(Silence(*place, end, until, SESSION_TIMEOUT) for place, end in ends.items())]
    tables, settings = lake(rnd, facts, capture, 3_000), Settings(capture=capture, home=tmp_path)
    place, end = next(iter(ends.items()))
    expected = truth([fact for fact in facts if (fact.topic, fact.partition) == place], settings)
    session = next(iter(expected))
    with pytest.raises(LakeError, match="stream time has not reached"):
        at(tables, settings, place, session, SessionMoment(ts=until))
    notes = Path(open_stored_stream_times(settings, "silver").folder)
    notes.mkdir(parents=True)
    noted = StreamTimesAtBatchEnds().add_stream_times([PartitionStreamTime(*place, until, end)])
    (notes / "recent.arrow").write_bytes(encode_ipc(noted.recent))
    for session, rows in expected.items():
        assert_equal(at(tables, settings, place, session, SessionMoment(ts=until)), rows, session)
        with pytest.raises(LakeError, match="stream time has not reached"):
            at(tables, settings, place, session, SessionMoment(ts=until + 1))


def test_of_an_unknown_session_is_said_which_there_are_without_reading_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, _, facts = scene(1, Integrity.STRICT)
    read: list[int] = []
    rows = tables.read_rows
    monkeypatch.setattr(
        tables, "read_rows", lambda *given, **named: (read.append(1) or row for row in rows(*given, **named))
    )
    monkeypatch.setattr("sessionlake.history.asof._MAX_SEARCHED", 3)
    with pytest.raises(
        UsageError, match=rf"session 'x' is unknown\. Name a session that exists, such as .*\({facts[0].topic}\)"
    ):
        find_session(tables, settings, "x")
    assert len(read) == 3


@pytest.mark.parametrize(("seed", "integrity"), cases(range(200, 210), Integrity.ORDER, Integrity.ONCE))
def test_as_of_every_seq_it_is_the_table_once_all_up_to_it_was_applied(seed: int, integrity: Integrity) -> None:
    tables, settings, _ = scene(seed, integrity)
    changes = plain(tables.tables["silver.session_changes"])
    for *place, name in sorted({tuple(row[name] for name in SESSION) for row in changes}):
        session = find_session(tables, settings, name, *place)
        own = [row for row in changes if tuple(row[name] for name in SESSION) == (*place, name)]
        upto = {row["_seq"] for row in own if row["_life"] == session.life and row["_seq"] is not None}
        for seq in upto:
            below = [r for r in own if r["_life"] != session.life or (r["_seq"] is not None and r["_seq"] <= seq)]
            if integrity is Integrity.ONCE:
                expected = folded(sorted(below, key=lambda r: (r["_life"], r["_seq"], r["ordinal"])))
            else:
                last = max(row["_position"] for row in below)
                inside = [row for row in own if row["_position"] <= last]
                expected = folded(sorted(inside, key=lambda r: (r["_position"], r["ordinal"])))
            assert_equal(
                at(tables, settings, tuple(place), name, SessionMoment(seq=seq)), expected, (*place, name, seq)
            )


@pytest.mark.parametrize(("seed", "integrity"), cases(range(300, 306), Integrity.STRICT))
def test_as_of_reads_one_table_no_more_changes_than_that_has_rows_and_one_interval_s(
    seed: int, integrity: Integrity, monkeypatch: pytest.MonkeyPatch
) -> None:
    rnd = random.Random(seed)
    capture = CaptureSettings(columns=COLUMNS, integrity=integrity, on_violation=OnViolation.RECORD)
    messages, interval = StreamMaker(rnd, rnd.choice([LIGHT, WILD])).make(120), rnd.choice([3_000, 20_000])
    tables = lake(rnd, messages, capture, interval, lags=False)
    read: dict[str, list[Row]] = {}
    batches = tables.read_batches

    def noted(table: str, *conditions: Condition, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for batch in batches(table, *conditions, columns=columns):
            read.setdefault(table, []).extend(plain(pa.Table.from_batches([batch])))
            yield batch

    monkeypatch.setattr(tables, "read_batches", noted)
    changes = plain(tables.tables["silver.session_changes"])
    for *place, name in {tuple(row[name] for name in SESSION) for row in changes}:
        own = [m for m in messages if [m.topic, m.partition, m.key] == [*place, name.encode()]]
        for ts in {message.timestamp for message in rnd.sample(own, min(len(own), MOMENTS))}:
            read.clear()
            if at(tables, Settings(capture=capture), tuple(place), name, SessionMoment(ts=ts)) is None:
                continue
            earlier = [
                row for row in read.get("silver.session_changes", []) if row["_applied_at"] < ts // interval * interval
            ]
            assert len(earlier) <= len(read.get("silver.session_snapshots", []))


def folded(changes: list[Row]) -> dict[str, Row]:
    table: dict[str, Row] = {}
    for change in changes:
        if change["change"] == "clear":
            table.clear()
        elif change["change"] == "delete":
            table.pop(change["row_id"], None)
        else:
            before = table.get(change["row_id"], dict.fromkeys(COLUMNS))
            values = {name: change[name] if name in change["_set"] else before[name] for name in COLUMNS}
            marks = {name: change[name] for name in ("_rescued", "_epoch", "_seq", "_ts", "_offset")}
            table[change["row_id"]] = values | marks
    return table


def test_an_id_in_two_partitions_is_found_by_the_partition_alone() -> None:
    rnd, capture = random.Random(0), CaptureSettings(columns=COLUMNS, integrity=Integrity.NONE)
    text = b'{"type":"snapshot","seq":0,"ts":0,"rows":[{"id":"r","qty":%d}]}'
    messages = [KafkaMessage("capture.a", number, 0, 0, b"s", text % number) for number in (1, 3)]
    tables, settings = lake(rnd, messages, capture, 600_000, lags=False), Settings(capture=capture)
    with pytest.raises(UsageError, match=r"'s' exists in several partitions of capture.a \(1, 3\).*--partition"):
        find_session(tables, settings, "s")
    with pytest.raises(UsageError, match="session 's', partition 2, is unknown"):
        find_session(tables, settings, "s", partition=2)
    for number in (1, 3):
        found = at(tables, settings, ("capture.a", number), "s", SessionMoment(offset=0))
        assert found is not None
        assert found["r"]["qty"] == number


@pytest.mark.parametrize("given", [{}, {"ts": 1, "seq": 1}, {"seq": 1, "offset": 1}])
def test_exactly_one_moment_is_taken(settings: Settings, given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="one moment"):
        session_as_of(settings, "s", **given)
