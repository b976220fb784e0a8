"""From changes to the rows of `gold.rolling_average` through packing, folding and state bytes, without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.sources import PARTITION, DeclaredColumns
from sessionlake.gold.aggregate.standard import METRICS_1M, STANDARD
from sessionlake.gold.fold import state
from sessionlake.gold.fold.outputs import AveragesPayloadKind, GoldFoldReport, sum_encoded_reports
from sessionlake.gold.fold.pack import (
    SEPARATOR,
    ChangePacker,
    DecodedChunks,
    ReadChangesSummary,
    build_shard_column_name,
    combine_partition_and_offset,
    list_owner_columns_of_averages,
    split_into_partition_and_offset,
)
from sessionlake.gold.fold.point_changes import select_changes_with_points
from sessionlake.gold.fold.product_payloads import CHANGES, LATE_POINTS, compute_product_rows
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import (
    GoldShardFold,
    TrackedAverageTable,
    count_kept_points_per_series,
    recompute_averages,
)
from sessionlake.gold.fold.state import (
    ForgottenSeriesOwners,
    GoldShardState,
    decode_states,
    encode_states,
    hash_owner_names,
)
from sessionlake.gold.rebuilding import states
from sessionlake.protocol.arrow import decode_dictionaries
from sessionlake.settings.gold import ProductSettings
from sessionlake.settings.model import Settings

METRICS = ("price", "qty")
WINDOW = 3
HOUR = 3_600_000
BY_SESSION = RollingAverage("rolling_average", window_points=WINDOW)
BY_SENSOR = RollingAverage("sensor_average", ("topic", "row_id", "metric"), window_points=WINDOW)
SERIES = (BY_SESSION, BY_SENSOR, RollingAverage("by_metric", ("topic", "metric"), window_points=2))
Change = dict[str, Any]


def change(session: str, row: str | None, position: int, ts: int, kafka_ms: int = 0, **values: float) -> Change:
    """A change; a session named as `s/1` is the one of id `s` in partition 1."""
    columns = {f"value:{i}": values.get(name) for i, name in enumerate(METRICS)}
    session, _, partition = session.partition("/")
    at = {"partition": int(partition or session == "t"), "offset": position + 10, "kafka_ms": kafka_ms}
    at |= {"ts": ts, "applied": kafka_ms, "position": position, "ordinal": 0, "batch": position}
    return {"topic": "capture.a", "session_id": session, "row_id": row} | at | columns


_SCHEMA = pa.schema(
    [(build_shard_column_name(i), pa.int32()) for i in range(len(SERIES))]
    + [(name, pa.string()) for name in ("topic", "session_id", "row_id")]
    + [("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("offset", "kafka_ms", "ts", "applied", "position")]
    + [("ordinal", pa.int32()), ("batch", pa.int64()), ("value:0", pa.float64()), ("value:1", pa.float64())]
)


class Gold:
    """The fold over several shards and the tables it writes, in memory."""

    def __init__(
        self,
        shards: int,
        idle_ms: int = HOUR,
        series: tuple[RollingAverage, ...] = (BY_SESSION,),
        resting_ms: int | None = None,
        packer: ChangePacker | None = None,
        schema: pa.Schema = _SCHEMA,
    ) -> None:
        self.shards, self.series, self.schema = shards, series, schema
        self.packer = packer or ChangePacker(DeclaredColumns(METRICS), list_owner_columns_of_averages(series))
        self.fold = GoldShardFold(
            DeclaredColumns(METRICS), tuple(map(TrackedAverageTable, series)), (), idle_ms, resting_ms or idle_ms
        )
        self.states: dict[int, bytes] = {}
        self.tables: dict[str, dict[tuple[Any, ...], Change]] = {one.name: {} for one in series}
        self.restated: list[Change] = []
        self.beyond = 0

    @property
    def averages(self) -> dict[tuple[Any, ...], Change]:
        return self.tables[BY_SESSION.name]

    def state(self) -> GoldShardState:
        return GoldShardState.decode_state(decode_states(self.states[0])[BY_SESSION.name])

    def batch(self, changes: list[Change]) -> GoldFoldReport:
        reports = []
        for shard, chunks in self._packed(changes).items():
            state, out = self.fold(shard, self.states.get(shard), chunks)
            if state is not None:
                self.states[shard] = state
            content = by_kind(out)
            reports.append(content.pop(AveragesPayloadKind.REPORT))
            for series in self.series:
                self._write(series, content)
        return sum_encoded_reports(reports)

    def _packed(self, changes: list[Change]) -> dict[int, list[bytes]]:
        rows = [c | self._shard_of(c) for c in changes]
        tasks = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        chunks: dict[int, list[bytes]] = {}
        for task in tasks:
            given = [pa.RecordBatch.from_pylist(task, self.schema)] if task else []
            for packed in self.packer(given):
                for row in packed.to_pylist():
                    chunks.setdefault(row["shard"], []).append(row["chunk"])
        return chunks

    def _shard_of(self, c: Change) -> Change:
        names = ([name for name in owner if name != PARTITION] for owner in list_owner_columns_of_averages(self.series))
        owners = ["".join(c[name] or "" for name in owner) for owner in names]
        return {build_shard_column_name(i): zlib.crc32(owner.encode()) % self.shards for i, owner in enumerate(owners)}

    def _write(self, series: RollingAverage, content: dict[str, Any]) -> None:
        table = self.tables[series.name]
        beyond = (
            decode_dictionaries(content[kind])
            if (kind := AveragesPayloadKind.BEYOND.build_payload_kind(series)) in content
            else None
        )
        for kind in (AveragesPayloadKind.RESTATED, AveragesPayloadKind.NEW, AveragesPayloadKind.CHANGED):
            rows = (
                decode_dictionaries(content[kind.build_payload_kind(series)]).to_pylist()
                if kind.build_payload_kind(series) in content
                else []
            )
            if kind is AveragesPayloadKind.RESTATED:
                self.restated += rows
                continue
            assert all(list(row) == [name for name, _ in series.column_types] for row in rows)
            for row in rows:
                key = tuple(row[n] for n in series.row_keys)
                assert (key in table) == (kind is AveragesPayloadKind.CHANGED)
                table[key] = row
        if beyond is not None:
            found = recompute_averages(self._with_history(series, beyond), series)
            self._write(series, by_kind((emitted.kind, emitted.rows) for emitted in found))

    def _with_history(self, series: RollingAverage, beyond: pa.Table) -> pa.Table:
        self.beyond += beyond.num_rows
        rows = [row | {"revision": 0, "fresh": True} for row in beyond.to_pylist()]
        keys = {tuple(row[n] for n in series.keys) for row in rows}
        for row in self.tables[series.name].values():
            if tuple(row[n] for n in series.keys) in keys:
                place = (
                    row["position"]
                    if series.is_per_session
                    else combine_partition_and_offset(*as_ints(row["partition"], row["offset"]))[0]
                )
                rows.append(row | {"place": int(place), "fresh": False, "offset": None})
        added = [pa.field("revision", pa.int64()), pa.field("fresh", pa.bool_())]
        return pa.Table.from_pylist(rows, pa.schema([*beyond.schema, *added]))


def by_kind(emitted: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What a fold emits, put together by kind, however many payloads there are."""
    found: dict[str, Any] = {}
    for kind, content in emitted:
        found[kind] = pa.concat_tables([found[kind], content], promote_options="default") if kind in found else content
    return found


def as_ints(*values: int) -> list[Any]:
    return [np.array([value], np.int64) for value in values]


def by_hand(changes: list[Change], series: RollingAverage = BY_SESSION) -> dict[Any, Any]:
    """Averages and how many points each is of, keyed as in `Gold`."""
    lines: dict[Any, list[tuple[Any, float]]] = {}
    for c in changes:
        for i, metric in enumerate(METRICS):
            value = c[f"value:{i}"]
            if value is not None:
                key = tuple((c | {"metric": metric})[name] for name in series.keys)
                lines.setdefault(key, []).append((tuple(c[name] for name in series.point_columns), value))
    averages = {}
    for key, line in lines.items():
        line.sort()
        for i, (place, _) in enumerate(line):
            last = [v for _, v in line[max(0, i - series.window_points + 1) : i + 1]]
            averages[(*key, *place)] = (left_sum(last) / len(last), len(last))
    return averages


def left_sum(values: list[float]) -> float:
    total_ = 0.0
    for value in values:
        total_ += value
    return total_


def held(gold: Gold, series: RollingAverage = BY_SESSION) -> dict[Any, Any]:
    return {key: (row["average"], row["points"]) for key, row in gold.tables[series.name].items()}


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    value = st.none() | st.floats(-1e6, 1e6)
    raw = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["s", "t", "s/1"]),
                st.sampled_from(["r", "\0", "r\0x", "é"]),
                st.integers(-200_000, 200_000),
                st.integers(0, 3 * HOUR),
                value,
                value,
            ),
            min_size=1,
            max_size=40,
        )
    )
    drift = draw(st.sampled_from([0, 10_000]))
    made = [
        change(session, row, i, ts + i * drift, kafka, price=price, qty=qty)
        for i, (session, row, ts, kafka, price, qty) in enumerate(raw)
    ]
    cuts = sorted(draw(st.sets(st.integers(0, len(made)), max_size=10)) | {0, len(made)})
    return [made[a:b] for a, b in pairwise(cuts)]


@given(histories(), st.integers(1, 5), st.sampled_from([0, HOUR, 10 * HOUR]))
def test_any_batches_shards_and_idle_times_equal_a_recomputation(batches: list[list[Change]], shards: int, idle: int):
    gold = Gold(shards, idle, SERIES)
    reports = [gold.batch(batch) for batch in batches]
    for series in SERIES:
        assert held(gold, series) == by_hand([c for batch in batches for c in batch], series)
    assert sum(a.points for a in reports) == sum(map(len, gold.tables.values()))
    assert sum(a.read.changes for a in reports) == sum(map(len, batches))


@given(histories(), st.sampled_from([0, 10 * HOUR]))
def test_restatements_lead_from_the_first_figure_to_the_last(batches: list[list[Change]], idle: int):
    gold, first = Gold(2, idle, SERIES), dict[Any, Any]()
    for batch in batches:
        gold.batch(batch)
        for series in SERIES:
            for key, row in gold.tables[series.name].items():
                first.setdefault((series.table_name, *key), (row["average"], row["points"]))
    for row in gold.restated:
        series = next(one for one in SERIES if one.table_name == row["table"])
        key = (series.table_name, *(row[name] for name in series.row_keys))
        assert first[key] == (row["average_before"], row["points_before"])
        first[key] = (row["average"], row["points"])
        assert row["late_points"] == len(row["because"]) >= 1
        brought = {(c["partition"], c["offset"], c["ts"]) for batch in batches for c in batch}
        assert {tuple(cause.values()) for cause in row["because"]} <= brought
    for series in SERIES:
        assert {key[1:]: figure for key, figure in first.items() if key[0] == series.table_name} == held(gold, series)
        revisions = {key: row["revision"] for key, row in gold.tables[series.name].items()}
        told = [tuple(row[n] for n in series.row_keys) for row in gold.restated if row["table"] == series.table_name]
        assert revisions == {key: told.count(key) for key in revisions}


def test_a_message_s_place_is_one_number_and_taken_apart_again():
    partition, offset = np.array([0, 1, 65_535]), np.array([0, (1 << 47) - 1, 7])
    place = combine_partition_and_offset(partition, offset)
    assert (np.diff(place) > 0).all()
    assert {name: found.tolist() for name, found in split_into_partition_and_offset(place).items()} == {
        "partition": partition.tolist(),
        "offset": offset.tolist(),
    }


def test_a_table_that_was_made_again_begins_with_no_state_and_looks_up_what_it_holds():
    gold = Gold(1)
    before = [change("s", "r", i, i * 1000, price=float(i)) for i in range(5)]
    gold.batch(before)
    known = {
        shard: pa.table({"mark": hash_owner_names([SEPARATOR.join(owner)]), "newest": [newest]})
        for shard, owner, newest in ((0, ("capture.a", "s", "0"), 4000), (1, ("capture.a", "t", "1"), 9000))
    }
    gold.fold = GoldShardFold(
        DeclaredColumns(METRICS), (TrackedAverageTable(BY_SESSION, "anew", known.__getitem__),), (), HOUR, HOUR
    )
    after = [change("s", "r", 5 + i, (5 + i) * 1000, price=float(i)) for i in range(4)]
    new = [change("t", "r", 9 + i, i * 1000, price=float(i)) for i in range(4)]  # the table has it in another shard
    for batch in after:
        gold.batch([batch])
    assert gold.beyond == WINDOW - 1
    gold.batch(new)
    assert gold.beyond == WINDOW - 1  # of what the table does not hold, nothing is looked up
    assert gold.state().rebuild_id == "anew"
    assert held(gold) == by_hand([*before, *after, *new])


@pytest.mark.parametrize("owners", [0, 40])
def test_of_what_a_table_was_made_again_each_shard_reads_its_own(tmp_path: Path, owners: int):
    settings = Settings(home=tmp_path)
    rnd = np.random.default_rng(owners)
    marks, shards = rnd.permutation(2**64 - 1 - np.arange(owners, dtype=np.uint64)), rnd.integers(0, 5, owners)
    rows = pa.table({"shard": pa.array(shards, pa.int32()), "newest": np.arange(owners), "mark": marks})
    for made in ("a", "b"):
        states._write_files_of_owners_at_rebuild(settings, BY_SESSION, made, rows)
    (folder,) = states.get_owners_at_rebuild_folder(settings).iterdir()
    assert folder.name == f"{BY_SESSION.name}.b"
    for shard in range(6):
        found = states._OwnersAtRebuildReader(str(folder))(shard)
        own = [i for i in np.argsort(marks) if shards[i] == shard]
        assert (found["mark"].to_pylist(), found["newest"].to_pylist()) == (marks[own].tolist(), own)


@given(histories())
def test_state_survives_its_bytes(batches: list[list[Change]]):
    gold = Gold(1)
    for batch in batches:
        gold.batch(batch)
    assume(gold.states)
    states = decode_states(gold.states[0])
    assert encode_states(states) == gold.states[0]
    assert gold.state().encode_state() == states[BY_SESSION.name]


def test_a_session_idle_for_longer_than_the_limit_leaves_16_bytes_and_comes_back_exact():
    gold = Gold(1, idle_ms=HOUR)
    quiet = [change("quiet", "r", i, i * 1000, i, price=float(i)) for i in range(5)]
    busy = change("busy", "r", 5, 0, HOUR + 5, price=1.0)
    later = [change("quiet", "r", 6 + i, (60 + i) * 1000, HOUR + 6, price=float(i)) for i in range(6)]
    gold.batch(quiet)
    gold.batch([busy])
    state = gold.state()
    assert state.owners.name.to_pylist() == [SEPARATOR.join(("capture.a", "busy", "0"))]
    assert len(state.rows) == len(state.tail) == 1
    assert len(state.forgotten.mark) == 1
    for late in later:
        gold.batch([late])
    assert gold.beyond == WINDOW - 1  # from the third on the window is within the new tail
    assert held(gold) == by_hand([*quiet, busy, *later])


def test_a_session_idle_for_just_the_limit_is_kept():
    gold = Gold(1, idle_ms=HOUR)
    gold.batch([change("quiet", "r", 0, 0, 0, price=1.0)])
    gold.batch([change("busy", "r", 1, 0, HOUR, price=1.0)])
    assert len(gold.state().owners.name) == 2


def test_a_row_that_sessions_tell_of_one_after_the_other_rests_for_longer_than_they():
    across = next(one for one in SERIES if not one.is_per_session)
    gold = Gold(1, idle_ms=HOUR, series=(across,), resting_ms=24 * HOUR)
    rows = [change(f"s{n}", "r", n, n * 1000, 3 * HOUR * n, price=float(n)) for n in range(4)]
    for n, row in enumerate(rows):
        gold.batch([row])
        gold.batch([change("busy", "other", 10 + n, 0, 3 * HOUR * n + 2 * HOUR, price=1.0)])
    assert gold.beyond == 0
    gold.batch([change("busy", "other", 20, 0, 40 * HOUR, price=1.0)])
    gold.batch([change("s5", "r", 21, 5000, 41 * HOUR, price=5.0)])
    assert gold.beyond == 1


def test_null_and_absent_values_are_no_points_and_zero_has_no_sign():
    gold = Gold(1)
    report = gold.batch([change("s", "r", 0, 0), change("s", "r", 1, 0, price=-0.0), change("s", None, 2, 0)])
    assert report.points == len(gold.averages) == 1
    assert str(next(iter(gold.averages.values()))["value"]) == "0.0"


def test_a_batch_without_points_still_says_what_was_read():
    report = Gold(3).batch([change("s", None, 7, 0), change("s", None, 9, 0)])
    assert report == GoldFoldReport(ReadChangesSummary(2, 7, 9), 0, {}, {("capture.a", 0): 0})


def test_the_account_of_what_was_read_is_not_repeated_by_every_shard():
    changes = [change(f"s{i}", "r", i, 0, price=1.0) for i in range(20)]
    assert Gold(5).batch(changes).read == ReadChangesSummary(20, 0, 19)


def test_a_new_metric_finds_the_state_of_the_others():
    gold = Gold(1)
    first = [change("s", "r", i, i, price=float(i)) for i in range(4)]
    gold.batch(first)
    state = gold.state().renumber_series_for_metrics(("extra", "price", "qty"))
    assert set((state.tail.key % 3).tolist()) == {1}
    assert state.renumber_series_for_metrics(("extra", "price", "qty")) is state
    assert len(state.older) == 3


def test_a_metric_that_is_no_longer_declared_is_refused():
    gold = Gold(1)
    gold.batch([change("s", "r", 0, 0, qty=1.0)])
    assert (
        gold.state().renumber_series_for_metrics(("qty",)).renumber_series_for_metrics(METRICS).encode_state()
        == gold.state().encode_state()
    )
    with pytest.raises(LakeError, match="points of qty, which"):
        gold.state().renumber_series_for_metrics(("price",))


def test_state_of_another_format_is_refused():
    content = GoldShardState.create_empty("", METRICS).encode_state().replace(b"gold.state/4", b"gold.state/9")
    with pytest.raises(LakeError, match="state/9"):
        GoldShardState.decode_state(content)


def test_forgetting_a_session_again_keeps_the_later_time():
    none = ForgottenSeriesOwners(np.empty(0, np.uint64), np.empty(0, np.int64))
    forgotten = none.add_owners(["a", "b"], np.array([5, 7])).add_owners(["a"], np.array([3]))
    found, newest = forgotten.find_forgotten_owners(["b", "c", "a"])
    assert found.tolist() == [True, False, True]
    assert newest.tolist() == [7, 0, 5]


@pytest.mark.parametrize("keys", [BY_SESSION.keys, BY_SENSOR.keys])
def test_a_tail_is_longer_than_a_window(keys: tuple[str, ...]):
    assert all(
        count_kept_points_per_series(RollingAverage("own", keys, window_points=n)) >= n - 1 for n in range(1, 1025)
    )


OWNER = SEPARATOR.join(("capture.a", "s", "0"))


def owner_of(session: str) -> str:
    """What a state calls the session that `change` makes changes of."""
    return SEPARATOR.join(("capture.a", session, str(int(session == "t"))))


def test_a_chunk_keeps_one_row_a_change_with_a_point():
    shards = {build_shard_column_name(0): 4, build_shard_column_name(1): 5}
    batch = pa.RecordBatch.from_pylist([change("s", "r", 0, 5, qty=2.0) | shards], _SCHEMA)
    packed = next(ChangePacker(DeclaredColumns(METRICS), list_owner_columns_of_averages(SERIES[:2]))([batch]))
    assert packed["shard"].to_pylist() == [4, 5]
    found = DecodedChunks.decode_chunks(packed["chunk"].to_pylist())
    assert found.read == ReadChangesSummary(1, 0, 0)
    points = {
        one.name: select_changes_with_points(found.changes[one.owner_columns], DeclaredColumns(METRICS), one)
        for one in SERIES[:2]
    }
    rows = {name: table.to_pylist() for name, table in points.items() if table is not None}
    rest = {"partition": 0, "offset": 10, "kafka_ms": 0, "ts": 5, "ordinal": 0, "value:0": None, "value:1": 2.0}
    assert rows == {
        "rolling_average": [{"owner": OWNER, "row": SEPARATOR.join((OWNER, "r")), "position": 0} | rest],
        "sensor_average": [{"owner": "capture.a\0r", "row": "capture.a\0r", "position": 10} | rest],
    }


def test_without_numeric_columns_there_are_no_points():
    names = [f.name for f in _SCHEMA if not f.name.startswith("value:")]
    batch = pa.RecordBatch.from_pylist([change("s", "r", 0, 5) | {build_shard_column_name(0): 0}], _SCHEMA).select(
        names
    )
    packed = next(ChangePacker(DeclaredColumns(()), list_owner_columns_of_averages([BY_SESSION]))([batch]))
    state, out = GoldShardFold(DeclaredColumns(()), (TrackedAverageTable(BY_SESSION),), (), HOUR, HOUR)(
        0, None, packed["chunk"].to_pylist()
    )
    assert state is None
    assert [kind for kind, _ in out] == [AveragesPayloadKind.REPORT]
    assert sum_encoded_reports([out[0][1]]) == GoldFoldReport(ReadChangesSummary(1, 0, 0), 0, {}, {("capture.a", 0): 0})


@pytest.mark.parametrize("few", [0, 8, 1_000_000])
def test_products_have_the_same_rows_of_few_changes_as_of_many(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr("sessionlake.gold.fold.product_payloads.FEW_CHANGES", few)
    monkeypatch.setattr("sessionlake.gold.fold.outputs._PAYLOAD_ROWS", 3)
    declared, gold = DeclaredColumns(METRICS), Gold(4)
    fold = GoldShardFold(declared, (), STANDARD, HOUR, HOUR)
    changes = [
        change(f"s{i % 5}", f"r{i % 3}", i, i * 7_000_000, price=float(i), **({"qty": 1.0} if i % 2 else {}))
        for i in range(40)
    ]
    emitted: dict[str, list[pa.Table]] = {}
    for shard, chunks in gold._packed(changes).items():
        state, out = fold(shard, None, chunks)
        assert state is None
        for kind, rows in out:
            emitted.setdefault(kind, []).append(rows)
    assert (CHANGES in emitted) == (few > 0)
    assert (METRICS_1M.name in emitted) == (few < 1_000)
    given = pa.Table.from_batches([pa.RecordBatch.from_pylist(changes, _SCHEMA)])
    for product in STANDARD:
        parts = [pa.concat_tables(map(decode_dictionaries, emitted[product.name]))] if product.name in emitted else []
        if CHANGES in emitted:
            table = pa.concat_tables(emitted[CHANGES]).unify_dictionaries()
            parts.append(compute_product_rows(table, declared, STANDARD)[product.name])
        plain = [part.cast(product.arrow_schema()) for part in (product.arrow_schema().empty_table(), *parts)]
        whole = product.merge_rows(pa.concat_tables(plain))
        expected = product.aggregate_changes(given, declared)
        order = [(name, "ascending") for name in product.row_keys]
        assert whole.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()


@pytest.mark.parametrize("kind", [CHANGES, LATE_POINTS, AveragesPayloadKind.REPORT])
def test_no_product_can_be_named_as_another_kind_of_payload(kind: str) -> None:
    given = {"keys": ["topic", "metric"], "aggregates": {"points": "count"}}
    ProductSettings.model_validate({"name": kind.removeprefix("/"), **given})
    with pytest.raises(ValidationError, match="name"):
        ProductSettings.model_validate({"name": kind, **given})


def test_a_state_that_is_not_whole_is_an_error_that_says_so():
    whole = encode_states({"gold.rolling_average": GoldShardState.create_empty("", METRICS).encode_state()})
    for content in (b"", whole[:-1], msgspec.msgpack.encode([1])):
        with pytest.raises(LakeError, match=r"gold's state cannot be read \(.+\)\. .*sessionlake recover gold"):
            decode_states(content)
    with pytest.raises(LakeError, match="gold's state cannot be read"):
        GoldShardState.decode_state(decode_states(whole)["gold.rolling_average"][:-1])


@pytest.mark.parametrize(("rows", "kept"), [(4, "stuv"), (3, "tuv"), (2, "uv"), (1, "v"), (0, "")])
def test_of_more_rows_than_a_shard_keeps_the_sessions_silent_longest_are_forgotten_and_come_back_exact(
    rows: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_ROWS", rows)
    gold = Gold(1)
    sent = [change(session, "r", i, i * 1_000, i * 1_000, price=float(i)) for i, session in enumerate("stuv")]
    gold.batch(sent)
    assert gold.state().owners.name.to_pylist() == [owner_of(session) for session in kept]
    assert len(gold.state().forgotten.mark) == 4 - len(kept)
    back = [change(session, "r", 10 + i, 500 + i, 9_000, price=7.0) for i, session in enumerate("stuv")]
    gold.batch(back)
    assert held(gold) == by_hand([*sent, *back])


@pytest.mark.parametrize(("points", "kept"), [(6, "st"), (5, "t"), (3, "t"), (2, "")])
def test_of_more_points_than_a_shard_keeps_likewise(points: int, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_POINTS", points)
    gold = Gold(1)
    gold.batch([change("st"[i // 3], "r", i, i * 1_000, i * 1_000, price=float(i)) for i in range(6)])
    assert gold.state().owners.name.to_pylist() == [owner_of(session) for session in kept]
    assert len(gold.state().tail) == 3 * len(kept)
