"""The state of a shard between batches: the sessions' cursors as columns, the clock, and the messages held back.

The stored form has a version, `FORMAT`. A state of another version is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.integrity.chains import Chains
from sessionlake.integrity.clock import PartitionStreamTime, ShardClock
from sessionlake.integrity.cursor import (
    CURSOR_FIELDS,
    NEVER,
    SessionCursors,
    create_session_cursors,
    postpone_gap_deadlines,
)
from sessionlake.integrity.cuts import Cuts, create_cuts_due_by_time
from sessionlake.protocol.arrow import build_session_key_of_each_row, convert_to_contiguous_array, split_session_key
from sessionlake.protocol.chunk import align_columns_with_declared, decode_ipc, encode_ipc
from sessionlake.protocol.columns import Column
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.types import Bools, Int64s, Objects, TopicPartition

STATE_FORMAT = "sessionlake.silver/8"
# States with more cursors are compressed: to about a fifth of the size, at half a microsecond per cursor.
_MAX_UNCOMPRESSED_CURSORS = 1_000


class _StoredShardState(msgspec.Struct):
    """The stored form of a shard's state, encoded with MessagePack. Cursors and held messages are in Arrow IPC form."""

    format: str
    cursors: bytes
    lanes: list[PartitionStreamTime]
    columns: list[tuple[str, str]]
    held: bytes | None
    chains: Chains


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(_StoredShardState)


@dataclass
class ShardState:
    """Everything a shard remembers about its sessions between batches.

    Attributes:
        keys: The session key of each cursor, made of topic, partition and session id.
        cursors: An array with a cursor for each session.
        variable_parts: The encoded `CursorVariablePart` of each cursor; None for most.
        clock: Stream times of the topic-partitions that have sessions.
        held_messages: Messages held back, as rows of decoded messages; None if there are none.
        chains: The chains that sessions of the shard share.
    """

    keys: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    cursors: SessionCursors = field(default_factory=lambda: create_session_cursors(0))
    variable_parts: Objects = field(default_factory=lambda: np.empty(0, object))
    clock: ShardClock = field(default_factory=lambda: ShardClock([]))
    held_messages: pa.Table | None = None
    chains: Chains = field(default_factory=dict)
    _stored: bytes | None = field(default=None, repr=False)
    """The cursors as they were stored, until one changes. It saves encoding them again when only time has passed."""

    def find_cursor_indices(self, keys: pa.Array) -> Int64s:
        """Returns the index of the cursor of each session key, or -1 where the state has none."""
        return pc.fill_null(pc.index_in(keys, value_set=self.keys), -1).to_numpy().astype(np.int64)

    def store_cursors(
        self, cursor_indices: Int64s, keys: pa.Array, cursors: SessionCursors, variable_parts: Objects
    ) -> Int64s:
        """Replaces or appends cursors.

        Args:
            cursor_indices: For each cursor, the index of the one that it replaces; -1 to append it.
            keys: The session key of each cursor.
            cursors: The new cursors.
            variable_parts: The encoded variable part of each cursor, or None.

        Returns:
            The index of each cursor after that.
        """
        known = cursor_indices >= 0
        count = len(self.cursors)
        self._stored = None
        self.cursors = self.cursors.copy()
        self.cursors[cursor_indices[known]] = cursors[known]
        self.variable_parts[cursor_indices[known]] = variable_parts[known]
        self.keys = pa.concat_arrays([self.keys, keys.filter(pa.array(~known))])
        self.cursors = np.concatenate([self.cursors, cursors[~known]])
        self.variable_parts = np.concatenate([self.variable_parts, variable_parts[~known]])
        indices = cursor_indices.copy()
        indices[~known] = count + np.arange(int((~known).sum()))
        return indices

    def replace_unknown_session_times(self) -> Int64s:
        """Sets times that were unknown because a topic-partition had no stream time yet, and has one now.

        Returns:
            The indices of the cursors in these topic-partitions.
        """
        found = [np.zeros(0, np.int64)]
        for lane, (time, _) in self.clock.first_times.items():
            places = np.flatnonzero(self.cursors["lane"] == lane)
            self._stored, self.cursors = None, self.cursors.copy()
            for name in ("last_kafka_ts", "changed_at"):
                waits = places[self.cursors[name][places] == NO_KAFKA_TIME]
                self.cursors[name][waits] = time
            waits = places[self.cursors["due"][places] != NEVER]
            self.cursors["due"][waits] += time - NO_KAFKA_TIME
            for place in waits.tolist():
                self.variable_parts[place] = postpone_gap_deadlines(self.variable_parts[place], time - NO_KAFKA_TIME)
            of_lane = self.clock.partition_times[lane]
            for key, chain in self.chains.items():
                if chain.time == NO_KAFKA_TIME and split_session_key(key)[:2] == (of_lane.topic, of_lane.partition):
                    chain.time = time
            found.append(places)
        return np.concatenate(found)

    def mark_sessions_expired(self, cursor_indices: Int64s) -> None:
        """Marks the sessions at these cursor indices as expired."""
        if len(cursor_indices):
            self._stored = None
            self.cursors["marked"][cursor_indices] = 1

    def create_cuts_due_by_time(self, stream_times: Int64s, timeouts: Int64s, interval: int) -> Cuts:
        """Returns the cuts that are due by these stream times, and updates the cursors for them.

        Args:
            stream_times: Stream time of each session's topic-partition, ms.
            timeouts: Session timeout of each session, ms.
            interval: The snapshot interval, ms.
        """
        cuts = create_cuts_due_by_time(self.cursors, stream_times, timeouts, interval)
        if len(cuts):
            self._stored = None
        return cuts

    def keep_sessions(self, is_kept: Bools) -> None:
        """Drops all sessions where `is_kept` is False.

        Args:
            is_kept: A boolean for each cursor.
        """
        if not is_kept.all():
            gone = set(self.keys.filter(pa.array(~is_kept)).to_pylist()) if self.chains else set()
            for chain in self.chains.values():
                chain.sessions -= gone
            self._stored = None
            self.keys = self.keys.filter(pa.array(is_kept))
            self.cursors, self.variable_parts = self.cursors[is_kept], self.variable_parts[is_kept]

    def drop_clock_partitions_without_sessions(self, extra_partitions: Collection[TopicPartition] = ()) -> None:
        """Removes topic-partitions without sessions and chains from the clock, except `extra_partitions`."""
        lanes = self.clock.partition_times
        extra_partitions = {*extra_partitions, *(split_session_key(key)[:2] for key in self.chains)}
        used = np.array([(lane.topic, lane.partition) in extra_partitions for lane in lanes], np.bool_)
        used[self.cursors["lane"]] = True
        if used.all():
            return
        places = np.cumsum(used, dtype=np.int32) - 1
        if (places[self.cursors["lane"]] != self.cursors["lane"]).any():
            self._stored = None
            self.cursors = self.cursors.copy()
            self.cursors["lane"] = places[self.cursors["lane"]]
        self.clock = ShardClock([lane for lane, wanted in zip(lanes, used.tolist(), strict=True) if wanted])

    def replace_sessions(
        self,
        source: ShardState,
        is_selected: Callable[[str, int, str], bool],
        extra_partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Replaces selected sessions of this state by those of another state.

        Args:
            source: A state of the same shard after the same messages. An empty state removes the selected sessions.
            is_selected: Called with topic, partition and session id; returns True if that session is to be replaced.
            extra_partitions: Topic-partitions whose stream times are kept although no session is in them.
        """
        self.keep_sessions(~_mark_selected_keys(self.keys, is_selected))
        chosen = np.flatnonzero(_mark_selected_keys(source.keys, is_selected))
        cursors = source.cursors[chosen]
        lanes = [self.clock.add_partition_if_new(lane) for lane in source.clock.partition_times]
        cursors["lane"] = np.array([*lanes, 0], np.int32)[cursors["lane"]]
        absent = np.full(len(chosen), -1, np.int64)
        self.store_cursors(absent, source.keys.take(pa.array(chosen)), cursors, source.variable_parts[chosen])
        parts = [
            None
            if held is None
            else held.filter(pa.array(_mark_selected_keys(build_session_key_of_each_row(held), is_selected) == wanted))
            for held, wanted in ((self.held_messages, False), (source.held_messages, True))
        ]
        used = [part for part in parts if part is not None]
        self.held_messages = pa.concat_tables(used).combine_chunks() if used else None
        for key, chain in source.chains.items():
            if key in self.chains:
                self.chains[key].sessions |= {one for one in chain.sessions if is_selected(*split_session_key(one))}
        self.drop_clock_partitions_without_sessions(extra_partitions)

    def encode_shard_state(self, columns: tuple[Column, ...]) -> bytes:
        """Encodes the state as bytes that `decode` reads.

        Args:
            columns: The declared columns, which held messages contain.
        """
        held = None if self.held_messages is None or not self.held_messages.num_rows else encode_ipc(self.held_messages)
        declared = [(column.name, column.sql) for column in columns]
        cursors, lanes = self._stored or self._encode_cursors(), self.clock.partition_times
        return _encoder.encode(_StoredShardState(STATE_FORMAT, cursors, lanes, declared, held, self.chains))

    def _encode_cursors(self) -> bytes:
        arrays = [np.ascontiguousarray(self.cursors[name]) for name in CURSOR_FIELDS]
        columns = [self.keys, *map(pa.array, arrays), pa.array(self.variable_parts, pa.binary())]
        table = pa.table(columns, names=["key", *CURSOR_FIELDS, "memory"])
        return encode_ipc(table, compress_columns=table.num_rows > _MAX_UNCOMPRESSED_CURSORS)

    @classmethod
    def decode_shard_state(cls, stored: bytes | None, columns: tuple[Column, ...] | None) -> ShardState:
        """Decodes a state that `encode` wrote.

        Args:
            stored: The stored bytes; None gives an empty state.
            columns: The columns declared now; held messages get a null for each column declared since they were stored.
                With None, held messages keep the columns they were stored with.

        Raises:
            LakeError: The state has a format that this version does not read, or it has a column that is no longer
                declared with the same type.
        """
        if stored is None:
            return cls()
        found = _decode_stored_shard_state(stored)
        table = decode_ipc(found.cursors)
        cursors = create_session_cursors(table.num_rows)
        for name in CURSOR_FIELDS:
            cursors[name] = table[name].to_numpy()
        held = None if found.held is None else decode_ipc(found.held)
        if columns is not None:
            _require_unchanged_columns(found, columns)
            held = None if held is None else align_columns_with_declared(held, found.columns, columns)
        variable_parts = np.array([*table["memory"].to_pylist(), None], object)[:-1]
        return cls(
            convert_to_contiguous_array(table["key"]),
            cursors,
            variable_parts,
            ShardClock(found.lanes),
            held,
            found.chains,
            found.cursors,
        )


def find_changed_column_in_stored_state(stored: bytes | None, columns: tuple[Column, ...]) -> str | None:
    """Returns a column of a stored state that is not declared any more in the same way, as a text with name and type.

    Returns None if all its columns are declared, or if there is no state.

    Args:
        stored: The encoded state; None if there is none.
        columns: The columns declared now.

    Raises:
        LakeError: The state has a format that this version does not read.
    """
    return (
        None if stored is None else _find_changed_column_in_decoded_state(_decode_stored_shard_state(stored), columns)
    )


def _find_changed_column_in_decoded_state(stored: _StoredShardState, columns: tuple[Column, ...]) -> str | None:
    now = {(column.name, column.sql) for column in columns}
    return next((f"{name} ({sql})" for name, sql in stored.columns if (name, sql) not in now), None)


def _require_unchanged_columns(stored: _StoredShardState, columns: tuple[Column, ...]) -> None:
    changed = _find_changed_column_in_decoded_state(stored, columns)
    if changed is not None:
        raise LakeError(
            f"silver's stored state has a column {changed}, which the configuration no longer declares with this type",
            why="A stored state can only be read with the columns with which it was written",
            fix="Declare the column as before. Or run `sessionlake rebuild silver`, for a processor `sessionlake "
            "rebuild processor:NAME`, which computes the state again from bronze with the present columns",
        )


def _mark_selected_keys(keys: pa.Array, is_selected: Callable[[str, int, str], bool]) -> Bools:
    """Returns a boolean for each session key: True if the function selects its topic, partition and session id."""
    return np.array([is_selected(*split_session_key(key)) for key in keys.to_pylist()], np.bool_)


def _decode_stored_shard_state(stored: bytes) -> _StoredShardState:
    try:
        found = _decoder.decode(stored)
    except msgspec.MsgspecError as error:
        raise LakeError(f"the stored state of silver cannot be read: {error}", fix=_STATE_REMEDY) from None
    if found.format != STATE_FORMAT:
        raise LakeError(
            f"the stored state of silver has the format {found.format!r}, but this version reads {STATE_FORMAT!r}",
            fix=_STATE_REMEDY,
        )
    return found


_STATE_REMEDY = (
    "Run the version that wrote it, or run `sessionlake rebuild silver` to make it again from bronze with this version"
)
