"""Builds a chunk, the Arrow table of a group of messages, from the fields of well-formed messages in any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from sessionlake.protocol.arrow import concatenate_ranges
from sessionlake.protocol.chunk import RowChangeKind, build_change_fields, build_chunk_schema
from sessionlake.protocol.columns import ID, Column
from sessionlake.protocol.message import NO_SEQ, Message, MessageType, SeqLink, get_row_attribute_name
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.types import Bools, Int8s, Int64s


@dataclass
class MessageColumns:
    """The fields of well-formed messages, one array per field.

    Attributes:
        types, seq, ts: `MessageType`, seq and event time (ms) of each message; seq is `NO_SEQ` if it has none.
        n_rows, n_deleted: The number of rows and of deleted ids in each message.
        ids: The ids of the rows of all messages, one message after the other.
        values: For each declared column, its values in these rows; UNSET in rows without the column.
        deleted: The deleted ids of all messages, one message after the other.
        rescued: The JSON text of each row's undeclared columns; None if no row has any.
    """

    types: Int8s
    seq: Int64s
    ts: Int64s
    n_rows: Int64s
    n_deleted: Int64s
    ids: list[str]
    values: list[list[Any]]
    deleted: list[str]
    rescued: list[str | None] | None = None


def convert_messages_to_columns(
    messages: Sequence[Message], rescued: Sequence[list[str | None] | None], columns: Sequence[Column]
) -> MessageColumns:
    """Converts message structs to arrays with one value per message or row.

    Args:
        messages: The structs.
        rescued: For each message, the JSON text of each row's undeclared columns, or None if no row of it has any. The
            sequence is empty if no message has any.
        columns: The declared columns.
    """
    rows = list(map(attrgetter("rows"), messages))
    deleted = list(map(attrgetter("deleted"), messages))
    flat = list(chain.from_iterable(rows))
    return MessageColumns(
        _read_attribute_as_array(messages, "code", np.int8),
        _read_attribute_as_array(messages, "seq", np.int64),
        _read_attribute_as_array(messages, "ts", np.int64),
        measure_lengths(rows),
        measure_lengths(deleted),
        list(map(attrgetter(ID), flat)),
        [list(map(attrgetter(get_row_attribute_name(column, i)), flat)) for i, column in enumerate(columns)],
        list(chain.from_iterable(deleted)),
        [text for own, texts in zip(rows, rescued, strict=True) for text in texts or [None] * len(own)]
        if rescued
        else None,
    )


def select_messages(message_columns: MessageColumns, is_kept: Bools) -> MessageColumns:
    """Returns only those messages for which `is_kept` is true."""
    if is_kept.all():
        return message_columns
    of_row, of_deleted = np.repeat(is_kept, message_columns.n_rows), np.repeat(is_kept, message_columns.n_deleted)
    return MessageColumns(
        message_columns.types[is_kept],
        message_columns.seq[is_kept],
        message_columns.ts[is_kept],
        message_columns.n_rows[is_kept],
        message_columns.n_deleted[is_kept],
        list(compress(message_columns.ids, of_row)),
        [list(compress(values, of_row)) for values in message_columns.values],
        list(compress(message_columns.deleted, of_deleted)),
        None if message_columns.rescued is None else list(compress(message_columns.rescued, of_row)),
    )


def concatenate_message_columns(groups: Sequence[MessageColumns]) -> MessageColumns:
    """Joins several groups of messages into one, in the same order."""
    if len(groups) == 1:
        return groups[0]
    texts = [part.rescued or [None] * len(part.ids) for part in groups]
    return MessageColumns(
        np.concatenate([part.types for part in groups]),
        np.concatenate([part.seq for part in groups]),
        np.concatenate([part.ts for part in groups]),
        np.concatenate([part.n_rows for part in groups]),
        np.concatenate([part.n_deleted for part in groups]),
        list(chain.from_iterable(part.ids for part in groups)),
        [list(chain.from_iterable(values)) for values in zip(*(part.values for part in groups), strict=True)],
        list(chain.from_iterable(part.deleted for part in groups)),
        list(chain.from_iterable(texts)) if any(part.rescued for part in groups) else None,
    )


def build_chunk_of_messages(
    raw: pa.Table,
    reason_codes: Int8s,
    message_columns: MessageColumns,
    columns: tuple[Column, ...],
    order: Int64s | None = None,
) -> pa.Table:
    """Builds a chunk: the Arrow table of decoded messages, with one row per raw message.

    Args:
        raw: The raw messages.
        reason_codes: Reason code of each raw message; 0 if it is well-formed.
        message_columns: The fields of the well-formed messages.
        columns: The declared columns.
        order: For each well-formed message of `raw`, its index in `message_columns`; None if the order is the same.
    """
    malformed = reason_codes != 0
    changes = _build_changes_column(message_columns, columns)
    n_changes = np.diff(changes.offsets.to_numpy())
    heads: list[npt.NDArray[Any]] = [message_columns.types, message_columns.seq, message_columns.ts]
    if order is not None:
        changes = changes.take(pa.array(order))
        heads, n_changes = [head[order] for head in heads], n_changes[order]
    ends = np.concatenate([[0], np.cumsum(_insert_value_for_malformed(n_changes, malformed, 0))]).astype(np.int32)
    kind, seq, ts = (
        _insert_value_for_malformed(head, malformed, fill)
        for head, fill in zip(heads, (MessageType.MALFORMED, NO_SEQ, 0), strict=True)
    )
    arrays = [
        raw["topic"].cast(pa.string()),
        raw["partition"],
        raw["offset"],
        raw["kafka_ts"],
        _read_session_ids_from_keys(raw, reason_codes),
        pa.array(kind),
        pa.array(seq, mask=seq == NO_SEQ),
        pa.array(ts),
        pa.array(reason_codes),
        pc.fill_null(pc.binary_length(raw["value"]), 0).cast(pa.int32()),
        raw["kafka_ts"],
        pa.array(seq - 1, mask=seq == NO_SEQ),
        pa.array(np.full(len(seq), SeqLink.INTERVAL, np.int8)),
        pa.array(np.zeros(len(seq), np.int32)),
        *[pa.nulls(len(seq), pa.string())] * 2,
        pa.ListArray.from_arrays(pa.array(ends), changes.flatten()),
    ]
    return pa.Table.from_arrays(arrays, schema=build_chunk_schema(columns))


def _read_session_ids_from_keys(raw: pa.Table, reason_codes: Int8s) -> pa.Array:
    """Returns the session id of each message, which is its key as a text; null if the key is not a session id.

    Args:
        raw: The raw messages.
        reason_codes: The reason code of each message. That of `BAD_KEY` says that its key is not a session id.
    """
    bad_key = reason_codes == CODE_OF[Reason.BAD_KEY]
    keys = raw["key"].combine_chunks()
    if bad_key.any():
        keys = pc.if_else(pa.array(bad_key), pa.scalar(None, keys.type), keys)
    return keys.cast(pa.string())


def measure_lengths(items: Sequence[Any]) -> Int64s:
    """Returns the length of each item."""
    return np.fromiter(map(len, items), np.int64, len(items))


def _read_attribute_as_array(
    messages: Sequence[Message], attribute: str, dtype: type[np.integer[Any]]
) -> npt.NDArray[Any]:
    """Returns an attribute of each message as an array."""
    return np.fromiter(map(attrgetter(attribute), messages), dtype, len(messages))


def _insert_value_for_malformed(values: npt.NDArray[Any], is_malformed: Bools, fill_value: int) -> npt.NDArray[Any]:
    """Returns a value for every message: `values` for the well-formed ones, and `fill_value` for the others."""
    if not is_malformed.any():
        return values
    filled = np.full(len(is_malformed), fill_value, values.dtype)
    filled[~is_malformed] = values
    return filled


def _build_changes_column(message_columns: MessageColumns, columns: tuple[Column, ...]) -> pa.ListArray:
    """Returns the list column of changes: for each message a clear (snapshots only), its rows, and its deleted ids."""
    cleared = message_columns.types == MessageType.SNAPSHOT
    n_rows, n_deleted = message_columns.n_rows, message_columns.n_deleted
    sizes = cleared + n_rows + n_deleted
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    of_rows = concatenate_ranges(starts + cleared, n_rows)
    of_deleted = concatenate_ranges(starts + cleared + n_rows, n_deleted)

    kind = np.full(total, RowChangeKind.CLEAR, np.int8)
    kind[of_rows] = RowChangeKind.UPSERT
    kind[of_deleted] = RowChangeKind.DELETE
    row_of_change = None if total == len(message_columns.ids) else _compute_inverse_indices(of_rows, total)
    row_ids = pa.array(
        message_columns.ids if row_of_change is None else [*message_columns.ids, *message_columns.deleted], pa.string()
    )
    if row_of_change is not None:
        row_ids = row_ids.take(_compute_inverse_indices(np.concatenate([of_rows, of_deleted]), total))
    snapshot_row = np.repeat(cleared, n_rows)
    values, flags = [], []
    for column, cells in zip(columns, message_columns.values, strict=True):
        value, flag = _build_value_and_is_set_columns(cells, snapshot_row, column)
        values.append(value if row_of_change is None else value.take(row_of_change))
        is_set = np.zeros(total, np.bool_)
        is_set[of_rows] = flag
        flags.append(pa.array(is_set))
    fields = [
        pa.array(kind),
        pa.array((np.arange(total) - np.repeat(starts, sizes)).astype(np.int32)),
        row_ids,
        _build_undeclared_fields_column(message_columns.rescued, of_rows, total),
        pa.nulls(total, pa.int8()),
        *values,
        *flags,
    ]
    struct = pa.StructArray.from_arrays(fields, fields=list(build_change_fields(columns)))
    return pa.ListArray.from_arrays(pa.array(np.append(starts, total).astype(np.int32)), struct)


def _build_value_and_is_set_columns(
    values: list[Any], is_snapshot_row: Bools, column: Column
) -> tuple[pa.Array, Bools]:
    """Returns a declared column's value in each row, and a boolean for each row: True if its message set the column.

    A snapshot sets every column: an absent one is null.

    Args:
        values: The values; UNSET in rows without the column.
        is_snapshot_row: True for rows of snapshots.
        column: The column.
    """
    flag = np.ones(len(values), np.bool_)
    if UNSET in values:
        flag = np.fromiter((v is not UNSET for v in values), np.bool_, len(values))
        values = [None if v is UNSET else v for v in values]
    if column.sql == "float":
        return pa.array(values, pa.float64()).cast(pa.float32(), safe=False), flag | is_snapshot_row
    return pa.array(values, column.arrow), flag | is_snapshot_row


def _build_undeclared_fields_column(rescued: list[str | None] | None, of_rows: Int64s, total: int) -> pa.Array:
    """Returns the undeclared columns of each change as JSON text; null for changes without.

    Args:
        rescued: The text of each row, or None; None instead of the list if no row has one.
        of_rows: The index of each row's change.
        total: The number of changes.
    """
    if rescued is None:
        return pa.nulls(total, pa.string())
    texts = np.full(total, None, object)
    texts[of_rows] = rescued
    return pa.array(texts, pa.string())


def _compute_inverse_indices(places: Int64s, total: int) -> pa.Array:
    """Returns, for each index from 0 to `total` - 1, its position in `places`; null if it is not in it."""
    indices = np.full(total, -1, np.int64)
    indices[places] = np.arange(len(places))
    return pa.array(indices, mask=indices < 0)
