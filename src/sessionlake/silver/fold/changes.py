"""Makes the rows of `silver.session_changes` from applied messages, without Python code per message."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.cuts import NO_OFFSET
from sessionlake.integrity.outcome import JudgingOutcome
from sessionlake.protocol.arrow import concatenate_ranges, convert_to_contiguous_array
from sessionlake.protocol.chunk import build_set_flag_name, build_value_field_name
from sessionlake.protocol.columns import RESCUED, Column
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.silver.fold.schemas import TIMESTAMP_TYPE, build_changes_schema, convert_ms_to_timestamps

_CHANGE_KINDS = pa.array(["clear", "upsert", "delete"])


def build_change_rows(
    messages: pa.Table, applied_indices: Int64s, outcome: JudgingOutcome, columns: tuple[Column, ...]
) -> pa.Table:
    """Returns a row for `session_changes` for each change of an applied message, ordered by message and ordinal.

    Args:
        messages: The decoded messages of the batch, in the order of the outcome and in one Arrow chunk.
        applied_indices: Indices of the applied messages in `messages`, ascending.
        outcome: The result of judging the messages.
        columns: The declared columns.
    """
    nested = convert_to_contiguous_array(messages["changes"])
    bounds = nested.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(bounds)[applied_indices]
    changes = _select_structs(nested.values, concatenate_ranges(bounds[applied_indices], lengths))
    message = np.repeat(applied_indices, lengths)
    message_indices = pa.array(message)
    # If all messages are applied with one change each, the columns can be used without copying.
    is_complete = len(applied_indices) == messages.num_rows and bool((lengths == 1).all())

    def repeat_message_column(name: str) -> pa.Array:
        column = convert_to_contiguous_array(messages[name])
        return column if is_complete else column.take(message_indices)

    arrays = [
        repeat_message_column("topic"),
        repeat_message_column("session_id"),
        changes.field("row_id"),
        *(changes.field(build_value_field_name(i)) for i in range(len(columns))),
        changes.field(RESCUED),
        pa.array(outcome.epoch[message]),
        repeat_message_column("seq"),
        repeat_message_column("ts"),
        repeat_message_column("offset"),
        _CHANGE_KINDS.take(changes.field("change")),
        _list_set_columns(changes, columns),
        repeat_message_column("partition"),
        changes.field("ordinal"),
        pc.multiply(repeat_message_column("kafka_ts"), 1000).cast(TIMESTAMP_TYPE),
        pa.array(outcome.position[message]),
        pa.array(outcome.life[message]),
        convert_ms_to_timestamps(outcome.applied_at[message]),
        pa.array(outcome.applied_by[message], mask=outcome.applied_by[message] == NO_OFFSET),
    ]
    return pa.Table.from_arrays(arrays, schema=build_changes_schema(columns))


def _select_structs(structs: pa.StructArray, indices: Int64s) -> pa.StructArray:
    """Returns the structs at these indices; without copying if the indices are consecutive."""
    if len(indices) and len(indices) == indices[-1] - indices[0] + 1:
        return structs.slice(int(indices[0]), len(indices))
    return structs.take(pa.array(indices))


def _list_set_columns(changes: pa.StructArray, columns: tuple[Column, ...]) -> pa.Array:
    """Returns, for each change, the list of the declared columns that it sets.

    Each distinct list is built only once.
    """
    flags = np.stack([_convert_to_bools(changes.field(build_set_flag_name(i))) for i in range(len(columns))], axis=1)
    packed = np.packbits(flags, axis=1)
    codes = packed[:, 0] if packed.shape[1] == 1 else packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
    distinct, first, code = np.unique(codes, return_index=True, return_inverse=True)
    del distinct
    names = [[column.name for column, flag in zip(columns, flags[i], strict=True) if flag] for i in first.tolist()]
    return pa.array(names, pa.list_(pa.string())).take(pa.array(code.reshape(-1)))


def _convert_to_bools(array: pa.Array) -> Bools:
    return array.to_numpy(zero_copy_only=False).astype(np.bool_)
