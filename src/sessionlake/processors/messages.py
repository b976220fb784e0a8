"""Converts judged messages, which are Arrow columns, to `Message` objects for processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa

from sessionlake.integrity.outcome import JudgingOutcome
from sessionlake.processors.api import Message, Row
from sessionlake.protocol.arrow import convert_to_contiguous_array
from sessionlake.protocol.chunk import RowChangeKind, build_set_flag_name, build_value_field_name
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.types import Int64s

_TYPES: tuple[Literal["snapshot", "update", "heartbeat", "end"], ...] = ("snapshot", "update", "heartbeat", "end")
_SLICE = 4096
_HEADERS = ("topic", "session_id", "partition", "offset", "type", "seq", "ts", "kafka_ts")


def read_applied_messages(
    table: pa.Table, row_indices: Int64s, outcome: JudgingOutcome, columns: tuple[Column, ...]
) -> Iterator[tuple[int, Message]]:
    """Yields messages in the order of `row_indices`, each with its row index. Decodes them on demand.

    Args:
        table: The judged messages of a shard.
        row_indices: Row indices in `table`.
        outcome: The verdict, position and epoch of each row of `table`.
        columns: The declared columns.
    """
    for start in range(0, len(row_indices), _SLICE):
        yield from _read_applied_message_slice(table, row_indices[start : start + _SLICE], outcome, columns)


def _read_applied_message_slice(
    table: pa.Table, row_indices: Int64s, outcome: JudgingOutcome, columns: tuple[Column, ...]
) -> Iterator[tuple[int, Message]]:
    rows = table.take(pa.array(row_indices))
    headers = zip(*(rows[name].to_pylist() for name in _HEADERS), strict=True)
    facts = zip(
        *(getattr(outcome, name)[row_indices].tolist() for name in ("applied_at", "position", "epoch")), strict=True
    )
    changes = _RowChangesOfMessages(convert_to_contiguous_array(rows["changes"]), columns)
    both = zip(row_indices.tolist(), headers, facts, strict=True)
    for number, (index, (topic, session, partition, offset, kind, seq, ts, kafka_ts), fact) in enumerate(both):
        at, position, epoch = fact
        message = Message(
            topic=topic,
            session_id=session,
            partition=partition,
            offset=offset,
            type=_TYPES[kind],
            seq=seq,
            ts=ts,
            kafka_timestamp=kafka_ts,
            stream_time=at,
            position=position,
            epoch=epoch,
            rows=changes.read_set_rows(number),
            deleted=changes.read_deleted_row_ids(number),
        )
        yield index, message


class _RowChangesOfMessages:
    """The row changes of several messages. Reads the rows that one of these messages sets or deletes.

    Args:
        nested: For each message, the list of its changes as Arrow structs.
        columns: The declared columns.
    """

    def __init__(self, nested: pa.ListArray, columns: tuple[Column, ...]) -> None:
        self._bounds = nested.offsets.to_pylist()
        values = nested.values

        def read_column_as_list(name: str) -> list[Any]:
            found: list[Any] = values.field(name).to_pylist()
            return found

        self._change, self._id, self._rescued = (
            read_column_as_list("change"),
            read_column_as_list("row_id"),
            read_column_as_list(RESCUED),
        )
        self._columns = [
            (column.name, read_column_as_list(build_set_flag_name(i)), read_column_as_list(build_value_field_name(i)))
            for i, column in enumerate(columns)
        ]

    def read_set_rows(self, message_index: int) -> list[Row]:
        """Returns the rows that a message sets.

        Args:
            message_index: The message's index, from 0.
        """
        return [
            Row(self._id[i], {name: value[i] for name, was_set, value in self._columns if was_set[i]}, self._rescued[i])
            for i in self._find_change_range(message_index)
            if self._change[i] == RowChangeKind.UPSERT
        ]

    def read_deleted_row_ids(self, message_index: int) -> list[str]:
        """Returns the ids of the rows that a message deletes.

        Args:
            message_index: The message's index, from 0.
        """
        return [self._id[i] for i in self._find_change_range(message_index) if self._change[i] == RowChangeKind.DELETE]

    def _find_change_range(self, message_index: int) -> range:
        return range(self._bounds[message_index], self._bounds[message_index + 1])
