"""The four message types as typed structs, which are built at run time for the declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sessionlake.protocol.columns import ID, Column, JsonType
from sessionlake.protocol.names import add_internal_prefix

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_ID_BYTES = 1024
MAX_KEY_BYTES = 256
MAX_DEPTH = 64
NO_SEQ = -1
"""Stands for the seq of a message that has none, which class `none` allows."""

ANY_SEQ = INT64_MIN
"""Stands for the `after` of a message that may follow any seq, so that there is never a gap before it."""

Seq = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Ts = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
# A string of n characters has at most 4n bytes, so 256 characters always fit. Longer ids are parsed singly.
RowId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES // 4)]
# No JSON value has this type. So a message with such a field is refused by the decoder and parsed singly.
_NOTHING = Annotated[int, Meta(ge=1, le=0)]


class MessageType(IntEnum):
    """The types of messages, by their code in chunks. A MALFORMED message goes to quarantine and changes nothing."""

    MALFORMED = -1
    SNAPSHOT = 0
    UPDATE = 1
    HEARTBEAT = 2
    END = 3


TABLE_CHANGING_TYPES = frozenset({MessageType.SNAPSHOT, MessageType.UPDATE})
"""The message types that may change a table."""


class SeqLink(IntEnum):
    """How a message's `after` is compared with the last seq of its session."""

    INTERVAL = 0
    """There is a gap if `after` is above the last seq."""
    LINK = 1
    """There is a gap if `after` is not the last seq."""
    RESTART = 2
    """There is never a gap: the session's order starts again at this message."""
    CHAINED = 3
    """The next message of a chain that several sessions share: no gap is before it, and it is no duplicate."""
    REPEATED = 4
    """The message is a duplicate: its chain has already had its seq."""


class _MessageWithSeq(Struct, tag_field="type", gc=False, forbid_unknown_fields=True):
    seq: Seq
    ts: Ts


class _MessageWithoutSeq(Struct, tag_field="type", gc=False, forbid_unknown_fields=True):
    seq: ClassVar[int] = NO_SEQ
    ts: Ts


class HeartbeatMessage(_MessageWithSeq, tag="heartbeat", gc=False):
    """A message that changes nothing and shows that the session is alive."""

    code: ClassVar[int] = MessageType.HEARTBEAT
    rows: ClassVar[Sequence[Any]] = ()
    deleted: ClassVar[Sequence[str]] = ()


class EndMessage(_MessageWithSeq, tag="end", gc=False):
    """A message that ends its session."""

    code: ClassVar[int] = MessageType.END
    rows: ClassVar[Sequence[Any]] = ()
    deleted: ClassVar[Sequence[str]] = ()


Message = Any  # Snapshot | Update | Heartbeat | End; the first two classes depend on the declared columns


@dataclass(frozen=True)
class MessageStructsAndDecoders:
    """The structs and decoders of messages for one set of declared columns.

    Attributes:
        columns: The declared columns.
        row: The struct of a row. Its attribute for a column is UNSET in a row without the column.
        snapshot: The struct of a snapshot.
        update: The struct of an update.
        decoder: A JSON decoder for messages that have only declared fields, with values of the right types.
        seqless_decoder: A JSON decoder of the same kind for messages without a seq.
    """

    columns: tuple[Column, ...]
    row: type[Struct]
    snapshot: type[Struct]
    update: type[Struct]
    decoder: msgspec.json.Decoder[Any]
    seqless_decoder: msgspec.json.Decoder[Any]


def get_row_attribute_name(column: Column, column_index: int) -> str:
    """Returns the name of the attribute that row structs have for a declared column.

    Args:
        column: The column.
        column_index: The column's index among the declared columns.
    """
    return ID if column.name == ID else f"c{column_index}"


def is_name_without_json_escapes(name: str) -> bool:
    """Returns True if JSON writes this field name without escapes, so that msgspec can find the field."""
    return not {'"', "\\"} & {*name}


@lru_cache(maxsize=8)
def build_message_structs_and_decoders(columns: tuple[Column, ...]) -> MessageStructsAndDecoders:
    """Returns the structs and decoders of messages for declared columns. Each set of columns is built once."""
    others = [(i, column) for i, column in enumerate(columns) if column.name != ID]
    fields: list[tuple[str, Any, Any]] = [
        (
            f"c{i}",
            Union[_choose_python_type_of_values(column), None, UnsetType]  # noqa: UP007 - built at run time
            if is_name_without_json_escapes(column.name)
            else _NOTHING,
            UNSET,
        )
        for i, column in others
    ]
    names = {
        f"c{i}": column.name if is_name_without_json_escapes(column.name) else add_internal_prefix(f"c{i}")
        for i, column in others
    }
    row = msgspec.defstruct(
        "Row", [(ID, RowId), *fields], gc=False, forbid_unknown_fields=True, rename=names, module=__name__
    )
    rows = list[row]  # type: ignore[valid-type]  # the struct is made at run time
    snapshot, update = _build_snapshot_struct(_MessageWithSeq, rows), _build_update_struct(_MessageWithSeq, rows)
    decoder = msgspec.json.Decoder(Union[snapshot, update, HeartbeatMessage, EndMessage])  # noqa: UP007 - built at run time
    seqless: Any = Union[  # noqa: UP007 - built at run time
        _build_snapshot_struct(_MessageWithoutSeq, rows),
        _build_update_struct(_MessageWithoutSeq, rows),
        _build_message_struct("heartbeat", _MessageWithoutSeq, [], MessageType.HEARTBEAT, rows=(), deleted=()),
        _build_message_struct("end", _MessageWithoutSeq, [], MessageType.END, rows=(), deleted=()),
    ]
    return MessageStructsAndDecoders(columns, row, snapshot, update, decoder, msgspec.json.Decoder(seqless))


def _build_snapshot_struct(base: type[Struct], rows: Any) -> type[Struct]:
    return _build_message_struct("snapshot", base, [("rows", rows)], MessageType.SNAPSHOT, deleted=())


def _build_update_struct(base: type[Struct], rows: Any) -> type[Struct]:
    fields: list[Any] = [
        ("rows", rows, msgspec.field(default_factory=list)),
        ("deleted", list[RowId], msgspec.field(default_factory=list)),
    ]
    return _build_message_struct("update", base, fields, MessageType.UPDATE)


def _build_message_struct(
    tag: str, base: type[Struct], fields: Sequence[Any], code: MessageType, **fixed: Any
) -> type[Struct]:
    """Returns the struct class for a type of messages.

    Args:
        tag: The value of the field `type` in JSON.
        base: The class to inherit from.
        fields: The fields of the struct.
        code: The type's code in chunks.
        fixed: Class attributes, by name.
    """
    namespace = {"code": code, **fixed, "__annotations__": dict.fromkeys(("code", *fixed), ClassVar[Any])}
    return msgspec.defstruct(
        tag.capitalize(),
        fields,
        bases=(base,),
        namespace=namespace,
        tag=tag,
        tag_field="type",
        gc=False,
        forbid_unknown_fields=True,
        module=__name__,
    )


def _choose_python_type_of_values(column: Column) -> Any:
    """Returns the Python type, with its range, that a column's values must have in JSON messages."""
    if column.json_type is JsonType.BOOLEAN:
        return bool
    if column.json_type is JsonType.INTEGER:
        top = 2 ** (column.bits - 1)
        return Annotated[int, Meta(ge=-top, le=top - 1)]
    return float if column.json_type is JsonType.NUMBER else str
