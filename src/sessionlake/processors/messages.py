"""Turns the columns of a judged batch into `Message` objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa

from sessionlake.integrity.outcome import JudgingOutcome
from sessionlake.processors.api import Message, Row
from sessionlake.protocol.arrow import to_contiguous
from sessionlake.protocol.chunk import ChangeKind, build_set_flag_name, build_value_field_name
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.types import Int64s

_TYPES: tuple[Literal["snapshot", "update", "heartbeat", "end"], ...] = ("snapshot", "update", "heartbeat", "end")
_SLICE = 4096
_HEADERS = ("topic", "session_id", "partition", "offset", "type", "seq", "ts", "kafka_ts")


def read_messages(
    table: pa.Table, chosen: Int64s, outcome: JudgingOutcome, columns: tuple[Column, ...]
) -> Iterator[tuple[int, Message]]:
    """Yields the chosen messages in the given order, each with its row index.

    A message is decoded when it is needed.

    Args:
        table: The judged messages of a shard.
        chosen: Row indices in `table`.
        outcome: The verdict, position and epoch of each row of `table`.
        columns: The declared columns.
    """
    for start in range(0, len(chosen), _SLICE):
        yield from _read_messages(table, chosen[start : start + _SLICE], outcome, columns)


def _read_messages(
    table: pa.Table, chosen: Int64s, outcome: JudgingOutcome, columns: tuple[Column, ...]
) -> Iterator[tuple[int, Message]]:
    rows = table.take(pa.array(chosen))
    headers = zip(*(rows[name].to_pylist() for name in _HEADERS), strict=True)
    facts = zip(*(getattr(outcome, name)[chosen].tolist() for name in ("applied_at", "position", "epoch")), strict=True)
    changes = _ChangesByMessage(to_contiguous(rows["changes"]), columns)
    both = zip(chosen.tolist(), headers, facts, strict=True)
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
            rows=changes.read_rows(number),
            deleted=changes.read_deleted(number),
        )
        yield index, message


class _ChangesByMessage:
    """The rows that several messages set or delete, as Python lists by column."""

    def __init__(self, nested: pa.ListArray, columns: tuple[Column, ...]) -> None:
        self._bounds = nested.offsets.to_pylist()
        values = nested.values

        def read_list(name: str) -> list[Any]:
            found: list[Any] = values.field(name).to_pylist()
            return found

        self._change, self._id, self._rescued = read_list("change"), read_list("row_id"), read_list(RESCUED)
        self._columns = [
            (column.name, read_list(build_set_flag_name(i)), read_list(build_value_field_name(i)))
            for i, column in enumerate(columns)
        ]

    def read_rows(self, number: int) -> list[Row]:
        """Returns the rows that a message sets, given the message's index."""
        return [
            Row(self._id[i], {name: value[i] for name, was_set, value in self._columns if was_set[i]}, self._rescued[i])
            for i in self._change_range(number)
            if self._change[i] == ChangeKind.UPSERT
        ]

    def read_deleted(self, number: int) -> list[str]:
        """Returns the ids of the rows that a message deletes, given the message's index."""
        return [self._id[i] for i in self._change_range(number) if self._change[i] == ChangeKind.DELETE]

    def _change_range(self, number: int) -> range:
        return range(self._bounds[number], self._bounds[number + 1])
