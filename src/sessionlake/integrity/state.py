"""A shard's state between batches: all cursors as columns, the clock, and what is held back; versioned."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.integrity.clock import Clock, LaneTime
from sessionlake.integrity.cursor import FIELDS, NEVER, Cursors, later, new_cursors
from sessionlake.integrity.cuts import Cuts, cuts_by_time
from sessionlake.protocol.arrow import one, parts_of_key, session_keys
from sessionlake.protocol.chunk import conform, read_ipc, write_ipc
from sessionlake.protocol.columns import Column
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.types import Bools, Int64s, Objects, TopicPartition

FORMAT = "sessionlake.silver/5"
# More cursors than this are compressed: to a fifth, for half a microsecond each.
_FEW = 1_000


class _Stored(msgspec.Struct):
    """The envelope: Arrow IPC inside MessagePack."""

    format: str
    cursors: bytes
    lanes: list[LaneTime]
    columns: list[tuple[str, str]]
    held: bytes | None


_decoder = msgspec.msgpack.Decoder(_Stored)


@dataclass
class ShardState:
    """What a shard remembers between batches of all its sessions.

    Attributes:
        keys: of each cursor's session; see `protocol.arrow.session_key`.
        memories: the cursors' encoded memories, None for most.
        held: messages held back, as rows of a chunk.
    """

    keys: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    cursors: Cursors = field(default_factory=lambda: new_cursors(0))
    memories: Objects = field(default_factory=lambda: np.empty(0, object))
    clock: Clock = field(default_factory=lambda: Clock([]))
    held: pa.Table | None = None
    _stored: bytes | None = field(default=None, repr=False)
    """The cursors as they were stored, while none has changed: a shard that only time passes in is not encoded anew."""

    def find(self, keys: pa.Array) -> Int64s:
        """Index of each key's cursor, -1 where there is none."""
        return pc.fill_null(pc.index_in(keys, value_set=self.keys), -1).to_numpy().astype(np.int64)

    def update(self, places: Int64s, keys: pa.Array, cursors: Cursors, memories: Objects) -> Int64s:
        """Puts cursors at their places, and behind the others where the place is -1; returns all their places."""
        known = places >= 0
        count = len(self.cursors)
        self._stored = None
        self.cursors = self.cursors.copy()
        self.cursors[places[known]] = cursors[known]
        self.memories[places[known]] = memories[known]
        self.keys = pa.concat_arrays([self.keys, keys.filter(pa.array(~known))])
        self.cursors = np.concatenate([self.cursors, cursors[~known]])
        self.memories = np.concatenate([self.memories, memories[~known]])
        whole = places.copy()
        whole[~known] = count + np.arange(int((~known).sum()))
        return whole

    def begin_time(self) -> Int64s:
        """Sets the first known time of topic-partitions in their sessions; returns the sessions' places."""
        found = [np.zeros(0, np.int64)]
        for lane, (time, _) in self.clock.begun.items():
            places = np.flatnonzero(self.cursors["lane"] == lane)
            self._stored, self.cursors = None, self.cursors.copy()
            for name in ("last_kafka_ts", "changed_at"):
                waits = places[self.cursors[name][places] == NO_KAFKA_TIME]
                self.cursors[name][waits] = time
            waits = places[self.cursors["due"][places] != NEVER]
            self.cursors["due"][waits] += time - NO_KAFKA_TIME
            for place in waits.tolist():
                self.memories[place] = later(self.memories[place], time - NO_KAFKA_TIME)
            found.append(places)
        return np.concatenate(found)

    def mark_expired(self, sessions: Int64s) -> None:
        """Marks cursors as those of expired sessions."""
        if len(sessions):
            self._stored = None
            self.cursors["marked"][sessions] = 1

    def cut(self, times: Int64s, timeouts: Int64s, interval: int) -> Cuts:
        """Notes and returns what stream time cuts; see `cuts_by_time`."""
        cuts = cuts_by_time(self.cursors, times, timeouts, interval)
        if len(cuts):
            self._stored = None
        return cuts

    def keep(self, wanted: Bools) -> None:
        """Forgets the other cursors."""
        if not wanted.all():
            self._stored = None
            self.keys = self.keys.filter(pa.array(wanted))
            self.cursors, self.memories = self.cursors[wanted], self.memories[wanted]

    def keep_lanes(self, also: Collection[TopicPartition] = ()) -> None:
        """Forgets the stream times of topic-partitions that no session is in, and that are not among these, either."""
        lanes = self.clock.lanes
        kept = np.array([(lane.topic, lane.partition) in also for lane in lanes], np.bool_)
        kept[self.cursors["lane"]] = True
        if kept.all():
            return
        places = np.cumsum(kept, dtype=np.int32) - 1
        if (places[self.cursors["lane"]] != self.cursors["lane"]).any():
            self._stored = None
            self.cursors = self.cursors.copy()
            self.cursors["lane"] = places[self.cursors["lane"]]
        self.clock = Clock([lane for lane, wanted in zip(lanes, kept.tolist(), strict=True) if wanted])

    def graft(
        self, other: ShardState, mine: Callable[[str, int, str], bool], also: Collection[TopicPartition] = ()
    ) -> None:
        """Takes over another state's sessions in the place of its own.

        Args:
            other: of the same shard, after the same messages; an empty one forgets them.
            mine: whether a session, by topic, partition and id, is to be taken over; all others stay.
            also: topic-partitions whose stream times are kept though no session is in them.
        """
        self.keep(~_chosen(self.keys, mine))
        taken = np.flatnonzero(_chosen(other.keys, mine))
        cursors = other.cursors[taken]
        lanes = [self.clock.add(lane) for lane in other.clock.lanes]
        cursors["lane"] = np.array([*lanes, 0], np.int32)[cursors["lane"]]
        absent = np.full(len(taken), -1, np.int64)
        self.update(absent, other.keys.take(pa.array(taken)), cursors, other.memories[taken])
        parts = [
            None if held is None else held.filter(pa.array(_chosen(session_keys(held), mine) == wanted))
            for held, wanted in ((self.held, False), (other.held, True))
        ]
        kept = [part for part in parts if part is not None]
        self.held = pa.concat_tables(kept).combine_chunks() if kept else None
        self.keep_lanes(also)

    def encode(self, columns: tuple[Column, ...]) -> bytes:
        """The state as bytes."""
        held = None if self.held is None or not self.held.num_rows else write_ipc(self.held)
        declared = [(column.name, column.sql) for column in columns]
        return msgspec.msgpack.encode(
            _Stored(FORMAT, self._stored or self._encoded(), self.clock.lanes, declared, held)
        )

    def _encoded(self) -> bytes:
        arrays = [np.ascontiguousarray(self.cursors[name]) for name in FIELDS]
        columns = [self.keys, *map(pa.array, arrays), pa.array(self.memories, pa.binary())]
        table = pa.table(columns, names=["key", *FIELDS, "memory"])
        return write_ipc(table, compress_columns=table.num_rows > _FEW)

    @classmethod
    def decode(cls, stored: bytes | None, columns: tuple[Column, ...] | None) -> ShardState:
        """Reads what `encode` wrote.

        Args:
            columns: those declared now: messages held back since before a column was declared are without it. None
                leaves these with the columns of then.

        Raises:
            LakeError: the state is of a format that this version does not read, or of columns of which one is not
                declared any more, or otherwise.
        """
        if stored is None:
            return cls()
        found = _read(stored)
        table = read_ipc(found.cursors)
        cursors = new_cursors(table.num_rows)
        for name in FIELDS:
            cursors[name] = table[name].to_numpy()
        held = None if found.held is None else read_ipc(found.held)
        if columns is not None:
            _require_columns(found, columns)
            held = None if held is None else conform(held, found.columns, columns)
        memories = np.array([*table["memory"].to_pylist(), None], object)[:-1]
        return cls(one(table["key"]), cursors, memories, Clock(found.lanes), held, found.cursors)


def other_column(stored: bytes | None, columns: tuple[Column, ...]) -> str | None:
    """A column that was declared when a state was written, and is not declared so now; None if there is none.

    Raises:
        LakeError: the state is of a format that this version does not read.
    """
    return None if stored is None else _other(_read(stored), columns)


def _other(found: _Stored, columns: tuple[Column, ...]) -> str | None:
    now = {(column.name, column.sql) for column in columns}
    return next((f"{name} ({sql})" for name, sql in found.columns if (name, sql) not in now), None)


def _require_columns(found: _Stored, columns: tuple[Column, ...]) -> None:
    other = _other(found, columns)
    if other is not None:
        raise LakeError(
            f"capture.columns: the states of sessions are of a time when there was a column {other}: "
            "`sessionlake rebuild silver`, and of a processor `sessionlake rebuild processor:NAME`, makes them once "
            "more from bronze with the columns that are declared now; or declare it so again"
        )


def _chosen(keys: pa.Array, mine: Callable[[str, int, str], bool]) -> Bools:
    return np.array([mine(*parts_of_key(key)) for key in keys.to_pylist()], np.bool_)


def _read(stored: bytes) -> _Stored:
    try:
        found = _decoder.decode(stored)
    except msgspec.MsgspecError as error:
        raise LakeError(f"the silver state cannot be read ({error}): {_REMEDY}") from None
    if found.format != FORMAT:
        raise LakeError(f"the silver state is of format {found.format!r}, this version reads {FORMAT!r}: {_REMEDY}")
    return found


_REMEDY = (
    "run the version that wrote it, or, with this one, build silver once more from bronze (sessionlake rebuild silver)"
)
