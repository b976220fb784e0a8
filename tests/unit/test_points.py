"""From changes to the rows of `gold.rolling_average` through packing, folding and state bytes, without Spark."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.sources import Declared
from sessionlake.gold.fold.outputs import METRIC_KEY, GoldOutput, GoldReport, read_rows, total
from sessionlake.gold.fold.pack import PointPacker, ReadChanges, read_chunks
from sessionlake.gold.fold.shard import GoldFold, recompute, tail_length
from sessionlake.gold.fold.state import Forgotten, GoldShardState
from sessionlake.protocol.chunk import write_ipc

METRICS = ("price", "qty")
WINDOW = 3
HOUR = 3_600_000
Change = dict[str, Any]
Key = tuple[str, str, str, str]


def change(session: str, row: str | None, position: int, ts: int, kafka_ms: int = 0, **values: float) -> Change:
    columns = {f"value:{i}": values.get(name) for i, name in enumerate(METRICS)}
    at = {"partition": 0, "kafka_ms": kafka_ms, "ts": ts, "position": position, "ordinal": 0, "batch": position}
    return {"topic": "capture.a", "session_id": session, "row_id": row} | at | columns


_SCHEMA = pa.schema(
    [("shard", pa.int32()), ("topic", pa.string()), ("session_id", pa.string()), ("row_id", pa.string())]
    + [("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("kafka_ms", "ts", "position")]
    + [("ordinal", pa.int32()), ("batch", pa.int64()), ("value:0", pa.float64()), ("value:1", pa.float64())]
)


class Gold:
    """The fold over several shards and the table it writes, in memory."""

    def __init__(self, shards: int, idle_ms: int = HOUR) -> None:
        self.shards, self.fold = shards, GoldFold(METRICS, WINDOW, idle_ms)
        self.states: dict[int, bytes] = {}
        self.averages: dict[tuple[Any, ...], Change] = {}
        self.beyond = 0

    def batch(self, changes: list[Change]) -> GoldReport:
        reports = []
        for shard, chunks in self._packed(changes).items():
            state, out = self.fold(shard, self.states.get(shard), chunks)
            assert state is not None
            self.states[shard] = state
            reports.extend(self._write(out))
        return total(reports)

    def _packed(self, changes: list[Change]) -> dict[int, list[bytes]]:
        rows = [c | {"shard": zlib.crc32(c["session_id"].encode()) % self.shards} for c in changes]
        tasks = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        chunks: dict[int, list[bytes]] = {}
        for task in tasks:
            for packed in PointPacker(Declared(METRICS))([pa.RecordBatch.from_pylist(task, _SCHEMA)] if task else []):
                for row in packed.to_pylist():
                    chunks.setdefault(row["shard"], []).append(row["chunk"])
        return chunks

    def _write(self, out: list[tuple[str, bytes]]) -> list[bytes]:
        content = dict(out)
        for kind in (GoldOutput.NEW_AVERAGES, GoldOutput.CHANGED_AVERAGES):
            for row in read_rows([content[kind]]).to_pylist() if kind in content else []:
                key = (*(row[n] for n in METRIC_KEY), row["ts"], row["position"])
                assert (key in self.averages) == (kind is GoldOutput.CHANGED_AVERAGES)
                self.averages[key] = row
        if GoldOutput.BEYOND in content:
            self._write(recompute(self._with_history(read_rows([content[GoldOutput.BEYOND]])), WINDOW))
        return [content[GoldOutput.REPORT]] if GoldOutput.REPORT in content else []

    def _with_history(self, beyond: pa.Table) -> pa.Table:
        self.beyond += beyond.num_rows
        new = beyond.append_column("fresh", pa.array([True] * beyond.num_rows))
        keys = {tuple(row[n] for n in METRIC_KEY) for row in beyond.to_pylist()}
        held = [row | {"fresh": False} for key, row in self.averages.items() if key[:4] in keys]
        return pa.concat_tables([new, pa.Table.from_pylist(held, new.schema)])


def by_hand(changes: list[Change]) -> dict[Any, Any]:
    """Averages and how many points each is of, keyed as in `Gold`."""
    lines: dict[Key, list[tuple[int, int, float]]] = {}
    for c in changes:
        for i, metric in enumerate(METRICS):
            value = c[f"value:{i}"]
            if value is not None:
                key = (c["topic"], c["session_id"], c["row_id"], metric)
                lines.setdefault(key, []).append((c["ts"], c["position"], value))
    averages = {}
    for key, line in lines.items():
        line.sort()
        for i, (ts, position, _) in enumerate(line):
            last = [v for _, _, v in line[max(0, i - WINDOW + 1) : i + 1]]
            averages[(*key, ts, position)] = (left_sum(last) / len(last), len(last))
    return averages


def left_sum(values: list[float]) -> float:
    total_ = 0.0
    for value in values:
        total_ += value
    return total_


def held(gold: Gold) -> dict[Any, Any]:
    return {key: (row["average"], row["points"]) for key, row in gold.averages.items()}


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    value = st.none() | st.floats(-1e6, 1e6)
    raw = draw(
        st.lists(
            st.tuples(
                st.sampled_from("st"),
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
        change(session, row, i, ts + i * drift, kafka, price=price, qty=qty)  # type: ignore[arg-type]
        for i, (session, row, ts, kafka, price, qty) in enumerate(raw)
    ]
    cuts = sorted(draw(st.sets(st.integers(0, len(made)), max_size=10)) | {0, len(made)})
    return [made[a:b] for a, b in pairwise(cuts)]


@given(histories(), st.integers(1, 5), st.sampled_from([0, HOUR, 10 * HOUR]))
def test_any_batches_shards_and_idle_times_equal_a_recomputation(batches: list[list[Change]], shards: int, idle: int):
    gold = Gold(shards, idle)
    reports = [gold.batch(batch) for batch in batches]
    assert held(gold) == by_hand([c for batch in batches for c in batch])
    assert sum(a.points for a in reports) == len(gold.averages)
    assert sum(a.read.changes for a in reports) == sum(map(len, batches))


@given(histories())
def test_state_survives_its_bytes(batches: list[list[Change]]):
    gold = Gold(1)
    for batch in batches:
        gold.batch(batch)
    content = gold.states[0]
    assert GoldShardState.decode(content).encode() == content


def test_a_session_idle_for_longer_than_the_limit_leaves_16_bytes_and_comes_back_exact():
    gold = Gold(1, idle_ms=HOUR)
    quiet = [change("quiet", "r", i, i * 1000, i, price=float(i)) for i in range(5)]
    busy = change("busy", "r", 5, 0, HOUR + 5, price=1.0)
    later = [change("quiet", "r", 6 + i, (60 + i) * 1000, HOUR + 6, price=float(i)) for i in range(6)]
    gold.batch(quiet)
    gold.batch([busy])
    state = GoldShardState.decode(gold.states[0])
    assert state.sessions.name.to_pylist() == ["capture.a\0busy"]
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
    assert len(GoldShardState.decode(gold.states[0]).sessions.name) == 2


def test_null_and_absent_values_are_no_points_and_zero_has_no_sign():
    gold = Gold(1)
    report = gold.batch([change("s", "r", 0, 0), change("s", "r", 1, 0, price=-0.0), change("s", None, 2, 0)])
    assert report.points == len(gold.averages) == 1
    assert str(next(iter(gold.averages.values()))["value"]) == "0.0"


def test_a_batch_without_points_still_says_what_was_read():
    report = Gold(3).batch([change("s", None, 7, 0), change("s", None, 9, 0)])
    assert report == GoldReport(ReadChanges(2, 7, 9), 0, {})


def test_the_account_of_what_was_read_is_not_repeated_by_every_shard():
    changes = [change(f"s{i}", "r", i, 0, price=1.0) for i in range(20)]
    assert Gold(5).batch(changes).read == ReadChanges(20, 0, 19)


def test_a_new_metric_finds_the_state_of_the_others():
    gold = Gold(1)
    first = [change("s", "r", i, i, price=float(i)) for i in range(4)]
    gold.batch(first)
    state = GoldShardState.decode(gold.states[0]).for_metrics(("extra", "price", "qty"))
    assert set((state.tail.key % 3).tolist()) == {1}
    assert state.for_metrics(("extra", "price", "qty")) is state
    assert len(state.older) == 3


def test_a_metric_that_is_no_longer_declared_is_refused():
    with pytest.raises(LakeError, match="qty"):
        GoldShardState.empty(WINDOW, METRICS).for_metrics(("price",))


def test_state_of_another_window_is_refused_with_both_numbers():
    gold = Gold(1)
    gold.batch([change("s", "r", 0, 0, price=1.0)])
    gold.fold = GoldFold(METRICS, WINDOW + 1, HOUR)
    with pytest.raises(LakeError, match=r"rolling_points is 4.*built with 3"):
        gold.batch([change("s", "r", 1, 0, price=1.0)])


def test_state_of_another_format_is_refused():
    content = GoldShardState.empty(WINDOW, METRICS).encode().replace(b"gold.state/2", b"gold.state/9")
    with pytest.raises(LakeError, match="state/9"):
        GoldShardState.decode(content)


def test_a_state_of_the_format_that_kept_minutes_too_is_read_on():
    gold = Gold(1)
    gold.batch([change("s", "r", i, i * 1000, price=float(i)) for i in range(9)])
    content = msgspec.msgpack.decode(gold.states[0])
    older = pa.ipc.open_stream(content["older"]).read_all()
    count = pa.array([4] * older.num_rows)
    for name in ("known", "count", "low", "high", "total", "first"):
        older = older.append_column(name, count)
    before = content | {"format": "sessionlake.gold.state/1", "older": write_ipc(older)}
    assert GoldShardState.decode(msgspec.msgpack.encode(before)).encode() == gold.states[0]


def test_forgetting_a_session_again_keeps_the_later_time():
    none = Forgotten(np.empty(0, np.uint64), np.empty(0, np.int64))
    forgotten = none.add(["a", "b"], np.array([5, 7])).add(["a"], np.array([3]))
    found, newest = forgotten.find(["b", "c", "a"])
    assert found.tolist() == [True, False, True]
    assert newest.tolist() == [7, 0, 5]


def test_a_tail_is_longer_than_a_window():
    assert all(tail_length(n) >= n - 1 for n in range(1, 1025))


def test_a_chunk_keeps_one_row_a_change_with_a_point():
    batch = pa.RecordBatch.from_pylist([change("s", "r", 0, 5, qty=2.0) | {"shard": 4}], _SCHEMA)
    packed = next(PointPacker(Declared(METRICS))([batch]))
    assert packed["shard"].to_pylist() == [4]
    table, read = read_chunks(packed["chunk"].to_pylist())
    assert read == ReadChanges(1, 0, 0)
    assert table.to_pylist() == [
        {"session": "capture.a\0s", "row": "capture.a\0s\0r", "partition": 0, "kafka_ms": 0, "ts": 5, "position": 0}
        | {"ordinal": 0, "value:0": None, "value:1": 2.0}
    ]


def test_without_numeric_columns_there_are_no_points():
    names = [f.name for f in _SCHEMA if not f.name.startswith("value:")]
    batch = pa.RecordBatch.from_pylist([change("s", "r", 0, 5) | {"shard": 0}], _SCHEMA).select(names)
    packed = next(PointPacker(Declared(()))([batch]))
    state, out = GoldFold((), WINDOW, HOUR)(0, None, packed["chunk"].to_pylist())
    assert state is not None
    assert [kind for kind, _ in out] == [GoldOutput.REPORT]
    assert total([out[0][1]]) == GoldReport(ReadChanges(1, 0, 0), 0, {})
