"""Reads and checks decoded Avro and Protobuf messages column by column, without Python code per message."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from sessionlake.protocol.assemble import MessageColumns, measure_lengths
from sessionlake.protocol.columns import ID, Column, JsonType
from sessionlake.protocol.message import INT64_MAX, MAX_ID_BYTES, NO_SEQ, MessageType
from sessionlake.protocol.parse import encode_undeclared_fields
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.schema_decoder import SET, TYPE_CODES, KindOfFieldValues, SchemaDecoder
from sessionlake.protocol.types import Bools, Int8s, Int64s

_WITH_ROWS = (MessageType.SNAPSHOT, MessageType.UPDATE)


@dataclass(frozen=True)
class MessagePrechecks:
    """What is known of raw messages before their values are read.

    Attributes:
        reasons: The reason code of each message that is refused already; 0 for the others.
        latest: The highest event time (ms) that each message may have.
        seqless: True for messages that may lack a seq.
    """

    reasons: Int8s
    latest: Int64s
    seqless: Bools

    def select_messages(self, selection: Any) -> MessagePrechecks:
        """Returns the values of some messages, chosen by a slice, a boolean array or an array of indices."""
        return MessagePrechecks(self.reasons[selection].copy(), self.latest[selection], self.seqless[selection])


class MessagesReadInBulk:
    """Messages of one schema, read field by field for all messages at once. Malformed ones get a reason.

    Attributes:
        reasons: Reason code of each message; 0 if it is well-formed.
        unsure: True for messages that must be parsed singly, because the reason cannot be decided here.
        columns: The fields of all messages, including refused ones.

    Args:
        decoder: Decoder of the schema.
        objects: The decoded messages.
        sizes: Size of each payload in bytes.
        prechecks: Faults and limits of the messages that are known without reading their values.
        columns: The declared columns.
    """

    def __init__(
        self,
        decoder: SchemaDecoder,
        objects: list[Any],
        sizes: Int64s,
        prechecks: MessagePrechecks,
        columns: tuple[Column, ...],
    ) -> None:
        self._decoder, self._columns = decoder, columns
        self.reasons = np.zeros(len(objects), np.int8)
        self.unsure = np.zeros(len(objects), np.bool_)
        names = decoder.read_message_types(objects)
        types = np.fromiter(map(TYPE_CODES.get, names, repeat(MessageType.MALFORMED)), np.int8, len(names))
        self._refuse_messages(types < 0, Reason.BAD_TYPE)
        seq, missing = self._read_seq_or_ts(objects, "seq", Reason.BAD_SEQ)
        self._refuse_messages(np.where(missing, ~prechecks.seqless, seq < 0), Reason.BAD_SEQ)
        seq = np.where(missing, NO_SEQ, seq)
        ts, missing = self._read_seq_or_ts(objects, "ts", Reason.BAD_TS)
        self._refuse_messages(missing, Reason.BAD_TS)
        self._refuse_messages(ts > prechecks.latest, Reason.FUTURE_TS)
        rows_of, n_rows = self._read_list_field(objects, "rows", np.isin(types, _WITH_ROWS))
        self._refuse_messages((n_rows < 0) & (types == MessageType.SNAPSHOT), Reason.BAD_ROWS)
        deleted_of, n_deleted = self._read_list_field(objects, "deleted", types == MessageType.UPDATE)
        n_rows, n_deleted = np.maximum(n_rows, 0), np.maximum(n_deleted, 0)
        deleted = list(chain.from_iterable(deleted_of))
        self._refuse_bad_id_lengths_and_encode(deleted, np.repeat(np.arange(len(objects)), n_deleted), Reason.BAD_ROWS)
        # More rows than fit into the payload if each has an id: refused before they become Python objects.
        crowded = n_rows * (decoder.layout.row_bytes if decoder.layout else 0) > sizes
        self._refuse_messages(crowded, Reason.BAD_ROW_ID)
        rows_of, n_rows = _replace_by_empty_lists(rows_of, crowded), np.where(crowded, 0, n_rows)
        rows = list(chain.from_iterable(rows_of))
        self._owner = np.repeat(np.arange(len(objects)), n_rows)
        ids = decoder.read_row_ids(rows)
        self._refuse_bad_row_ids(ids, n_rows)
        values = self._read_values_by_column(rows, ids)
        self.columns = MessageColumns(
            types, seq, ts, n_rows, n_deleted, ids, values, deleted, self._encode_undeclared_fields_of_rows(rows)
        )

    def _refuse_messages(self, is_refused: Bools, reason: Reason) -> None:
        """Gives the marked messages a reason, unless they have one already."""
        self.reasons[is_refused & (self.reasons == 0)] = CODE_OF[reason]

    def _refuse_messages_with_wrong_rows(
        self, wrong_rows: Bools, reason: Reason, message_indices: Int64s | None = None
    ) -> None:
        """Refuses the messages that have a marked row.

        Args:
            wrong_rows: True for each wrong row.
            reason: Why these messages are refused.
            message_indices: The index of each row's message; None if they are the rows in the field `rows`.
        """
        wrong = np.zeros(len(self.reasons), np.bool_)
        wrong[(self._owner if message_indices is None else message_indices)[wrong_rows]] = True
        self._refuse_messages(wrong, reason)

    def _read_seq_or_ts(self, objects: list[Any], field_name: str, reason: Reason) -> tuple[Int64s, Bools]:
        """Returns the field `seq` or `ts` of each message, and a boolean for each: True if the message lacks the field.

        Messages with a number beyond int64 are refused with this reason.
        """
        values, missing = self._decoder.read_integer_field(objects, field_name)
        try:
            found = np.fromiter(values, np.int64, len(values))
        except OverflowError:  # an unsigned value beyond int64
            self._refuse_messages(np.fromiter((value > INT64_MAX for value in values), np.bool_, len(values)), reason)
            found = np.fromiter((min(value, INT64_MAX) for value in values), np.int64, len(values))
        return found, np.zeros(len(values), np.bool_) if missing is None else missing

    def _read_list_field(self, objects: list[Any], field_name: str, has_field: Bools) -> tuple[list[Any], Int64s]:
        """Returns the field `rows` or `deleted` of each message, and its length (-1 if the message lacks the field).

        Args:
            has_field: True for messages whose type has the field. All others get an empty list.
        """
        found, missing = self._decoder.read_list_field(objects, field_name)
        sizes = measure_lengths(found)
        strange = (sizes > 0) & ~has_field
        sizes = np.where(strange, 0, sizes)
        return _replace_by_empty_lists(found, strange), sizes if missing is None else np.where(missing, -1, sizes)

    def _refuse_bad_row_ids(self, row_ids: list[str], row_counts: Int64s) -> None:
        """Marks each message as refused that has an empty or too long row id, or the same row id twice.

        Args:
            row_ids: The row ids of all messages, one message after the other.
            row_counts: The number of rows of each message.
        """
        codes = self._refuse_bad_id_lengths_and_encode(row_ids, self._owner, Reason.BAD_ROW_ID)
        if len(codes) and row_counts.max() > 1:
            count = int(codes.max()) + 1
            places = np.sort(self._owner * count + codes)
            repeated = np.zeros(len(self.reasons), np.bool_)
            repeated[places[1:][places[1:] == places[:-1]] // count] = True
            self._refuse_messages(repeated, Reason.DUPLICATE_ROW_ID)

    def _refuse_bad_id_lengths_and_encode(self, ids: list[str], message_indices: Int64s, reason: Reason) -> Int64s:
        """Refuses messages that have an id of a wrong length. Returns a code for each id: equal ids have equal codes.

        Args:
            ids: The ids of all messages.
            message_indices: The index of each id's message.
            reason: The reason of refused messages.
        """
        encoded = pa.array(ids, pa.string()).dictionary_encode()
        sizes = pc.binary_length(encoded.dictionary).to_numpy()
        codes = encoded.indices.to_numpy().astype(np.int64)
        if len(ids):
            self._refuse_messages_with_wrong_rows(
                ((sizes < 1) | (sizes > MAX_ID_BYTES))[codes], reason, message_indices
            )
        return codes

    def _read_values_by_column(self, rows: list[Any], row_ids: list[str]) -> list[list[Any]]:
        """Returns, for each declared column, its value in each row; UNSET in rows that do not set it."""
        layout, sets = self._decoder.layout, self._decoder.read_names_of_set_columns(rows)
        cells = layout.cells if layout else {}
        if sets is not None:
            self._mark_rows_that_set_undeclared_columns(sets)
        found = []
        for column in self._columns:
            if column.name == ID:  # every row has it, whatever its `_set` names
                found.append(row_ids)
                continue
            values, present = self._decoder.read_column_values(rows, column.name)
            is_set = _find_rows_that_set_column(present, sets, column.name)
            if is_set is not None:
                values = [value if flag else None for value, flag in zip(values, is_set, strict=True)]
            if column.name in cells:
                values = self._convert_values_and_refuse_bad_ones(values, column, cells[column.name])
            if is_set is not None:
                values = [value if flag else UNSET for value, flag in zip(values, is_set, strict=True)]
            found.append(values)
        return found

    def _mark_rows_that_set_undeclared_columns(self, set_names: list[Any]) -> None:
        """Marks messages as unsure if the field `_set` of a row names a column that is not declared."""
        known = {ID, SET, *(column.name for column in self._columns)}
        strange = [index for index, names in enumerate(set_names) if names and not known.issuperset(names)]
        self.unsure[self._owner[strange]] = True

    def _convert_values_and_refuse_bad_ones(
        self, values: list[Any], column: Column, value_kind: KindOfFieldValues
    ) -> list[Any]:
        """Returns the values converted to the column's type.

        A message with a value beyond the type's range is refused. Its values stay in the result, but nothing uses them.
        """
        if column.json_type is JsonType.INTEGER:
            self._refuse_messages_with_wrong_values(
                _find_integers_out_of_range(
                    pa.array(values, pa.uint64() if value_kind is KindOfFieldValues.UNSIGNED else pa.int64()), column
                )
            )
        elif column.json_type is JsonType.NUMBER:
            if value_kind is not KindOfFieldValues.FLOAT:
                values = [None if value is None else float(value) for value in values]
            numbers = pa.array(values, pa.float64())
            if column.sql == "float":
                numbers = numbers.cast(pa.float32(), safe=False)
            self._refuse_messages_with_wrong_values(pc.invert(pc.is_finite(numbers)))
        return values

    def _refuse_messages_with_wrong_values(self, is_wrong: pa.Array) -> None:
        """Refuses messages that have a row whose value is marked as wrong."""
        self._refuse_messages_with_wrong_rows(
            pc.fill_null(is_wrong, fill_value=False).to_numpy(zero_copy_only=False), Reason.BAD_COLUMN
        )

    def _encode_undeclared_fields_of_rows(self, rows: list[Any]) -> list[str | None] | None:
        """Returns the undeclared columns of each row as JSON text, or None.

        None instead of the list if no row has any.
        """
        layout = self._decoder.layout
        every = layout is not None and layout.undeclared
        texts: list[str | None] = [None] * len(rows)
        for index in range(len(rows)) if every else self._decoder.find_rows_with_unknown_fields(rows):
            texts[index] = encode_undeclared_fields(self._decoder.convert_row_to_json(rows[index]), self._columns)
        return texts if any(texts) else None


def _replace_by_empty_lists(lists: list[Any], is_replaced: Bools) -> list[Any]:
    """Returns the lists, with the marked ones replaced by empty ones."""
    if not is_replaced.any():
        return lists
    return [() if empty else item for item, empty in zip(lists, is_replaced.tolist(), strict=True)]


def _find_integers_out_of_range(values: pa.Array, column: Column) -> pa.Array:
    """Returns a boolean for each integer: true if it is beyond the range of the column's type."""
    highest = 2 ** (column.bits - 1) - 1
    above = pc.greater(values, pa.scalar(highest, values.type))
    return above if values.type == pa.uint64() else pc.or_(above, pc.less(values, pa.scalar(-highest - 1, values.type)))


def _find_rows_that_set_column(present: Bools | None, set_names: list[Any] | None, name: str) -> list[bool] | None:
    """Returns a boolean for each row: True if it sets the column. None if all rows set it.

    Args:
        present: For each row, whether it has the column; None if all have it.
        set_names: The field `_set` of each row; None if no row has one.
        name: The column's name.
    """
    if set_names is None:
        return None if present is None else present.tolist()
    there = [True] * len(set_names) if present is None else present.tolist()
    return [flag if names is None else name in names for flag, names in zip(there, set_names, strict=True)]
