"""What judging keeps of a session, and a shard's cursors as one columnar, versioned state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError

FORMAT = b"sessionlake.cursors/1"
_FORMAT_KEY = b"format"
NO_SEQ = -1
NO_EPOCH = -1
NO_TIME = np.iinfo(np.int64).min
# 0001-01-01: an event time may lie before it, a SQL timestamp may not.
_EARLIEST = -62_135_596_800_000


class Status(IntEnum):
    """Where a session stands in its life. Numbers are stored: append only."""

    OPEN = 0
    ENDED = 1
    EXPIRED = 2
    BROKEN = 3


CURSOR = np.dtype(
    [
        ("partition", np.int32),
        ("status", np.int8),
        ("epoch", np.int64),  # offset of the last applied snapshot
        ("last_seq", np.int64),  # highest applied; its successor could overflow
        ("messages", np.int64),  # applied
        ("duplicates", np.int64),
        ("gaps", np.int64),
        ("late", np.int64),
        ("first_ts", np.int64),  # event times of applied messages, ms
        ("last_ts", np.int64),
        ("first_offset", np.int64),  # of well-formed messages
        ("last_offset", np.int64),
        ("last_kafka_ts", np.int64),  # Kafka timestamp of the last well-formed message, ms
        ("ended_at", np.int64),  # event time of the end, ms; see `end_time`
    ]
)
_FIELDS = CURSOR.names or ()
Cursors = npt.NDArray[np.void]


def end_time(ts: int) -> int:
    """What `ended_at` says of an end at event time `ts`, ms: the same, or the first moment a timestamp can tell."""
    return max(ts, _EARLIEST)


def new_cursors(count: int) -> Cursors:
    """Cursors of sessions that nothing is known of."""
    cursors = np.zeros(count, CURSOR)
    cursors["epoch"] = NO_EPOCH
    cursors["last_seq"] = NO_SEQ
    for name in ("first_ts", "last_ts", "last_kafka_ts", "ended_at", "first_offset"):
        cursors[name] = NO_TIME
    return cursors


@dataclass(slots=True)
class Cursor:
    """One session's cursor as plain Python values; fields as in `CURSOR`."""

    partition: int = 0
    status: int = Status.OPEN
    epoch: int = NO_EPOCH
    last_seq: int = NO_SEQ
    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    late: int = 0
    first_ts: int = int(NO_TIME)
    last_ts: int = int(NO_TIME)
    first_offset: int = int(NO_TIME)
    last_offset: int = 0
    last_kafka_ts: int = int(NO_TIME)
    ended_at: int = int(NO_TIME)

    @classmethod
    def of(cls, record: np.void) -> Cursor:
        """Reads one record of a cursor array."""
        return cls(*record.tolist())

    def as_tuple(self) -> tuple[int, ...]:
        """The record to put back."""
        return tuple(getattr(self, name) for name in _FIELDS)


@dataclass
class ShardState:
    """All cursors of a shard. `keys` is `topic NUL session_id`: neither part can contain a NUL."""

    keys: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    cursors: Cursors = field(default_factory=lambda: new_cursors(0))

    def find(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """Index of each key's cursor, -1 where there is none."""
        return pc.fill_null(pc.index_in(keys, value_set=self.keys), -1).to_numpy().astype(np.int64)

    def updated(self, places: npt.NDArray[np.int64], keys: pa.Array, cursors: Cursors) -> ShardState:
        """The state with cursors put at their places, and appended where the place is -1."""
        known = places >= 0
        whole = self.cursors.copy()
        whole[places[known]] = cursors[known]
        added = keys.filter(pa.array(~known))
        return ShardState(pa.concat_arrays([self.keys, added]), np.concatenate([whole, cursors[~known]]))

    def encode(self) -> bytes:
        """Arrow IPC with the format version in its metadata."""
        columns = [self.keys, *(pa.array(np.ascontiguousarray(self.cursors[name])) for name in _FIELDS)]
        schema = pa.schema(
            [("key", pa.string()), *((name, pa.from_numpy_dtype(CURSOR[name])) for name in _FIELDS)],
            metadata={_FORMAT_KEY: FORMAT},
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, stored: bytes | None) -> ShardState:
        """Reads what `encode` wrote.

        Raises:
            LakeError: the state is of a format that this version does not read.
        """
        if stored is None:
            return cls()
        table = pa.ipc.open_stream(stored).read_all()
        found = (table.schema.metadata or {}).get(_FORMAT_KEY)
        if found != FORMAT:
            raise LakeError(
                f"the silver state is of format {found!r}, this version reads {FORMAT!r}: "
                "run the version that wrote it, or start from a fresh home"
            )
        cursors = np.empty(table.num_rows, CURSOR)
        for name in _FIELDS:
            cursors[name] = table[name].to_numpy()
        return cls(_flat(table["key"]), cursors)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    combined: Any = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
