"""The four message types as typed structs, made for the declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sessionlake.protocol.columns import ID, Column, JsonType
from sessionlake.protocol.names import internal

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_ID_BYTES = 1024
MAX_KEY_BYTES = 256
MAX_DEPTH = 64
NO_SEQ = -1
"""In place of the seq of a message that has none, as class `none` allows."""

Seq = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Ts = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
# A string of n characters has at most 4n bytes, so 256 characters always fit; longer ids take the slow path.
RowId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES // 4)]
# No JSON value is of this type: a message that names the field is refused, and so looked at one by one.
_NOTHING = Annotated[int, Meta(ge=1, le=0)]


class MessageType(IntEnum):
    """Message types as chunks carry them; MALFORMED never leaves quarantine."""

    MALFORMED = -1
    SNAPSHOT = 0
    UPDATE = 1
    HEARTBEAT = 2
    END = 3


class _Message(Struct, tag_field="type", gc=False, forbid_unknown_fields=True):
    seq: Seq
    ts: Ts


class _Seqless(Struct, tag_field="type", gc=False, forbid_unknown_fields=True):
    seq: ClassVar[int] = NO_SEQ
    ts: Ts


class Heartbeat(_Message, tag="heartbeat", gc=False):
    """Nothing changed; the session lives."""

    code: ClassVar[int] = MessageType.HEARTBEAT
    rows: ClassVar[Sequence[Any]] = ()
    deleted: ClassVar[Sequence[str]] = ()


class End(_Message, tag="end", gc=False):
    """The session is over."""

    code: ClassVar[int] = MessageType.END
    rows: ClassVar[Sequence[Any]] = ()
    deleted: ClassVar[Sequence[str]] = ()


Message = Any  # Snapshot | Update | Heartbeat | End; the first two are made for the declared columns


@dataclass(frozen=True)
class MessageTypes:
    """The structs for one set of declared columns.

    Attributes:
        columns: the declared columns; the row's attribute `field_of` each holds it, UNSET where the row lacks it.
        decoder: accepts exactly the messages that need no second look: declared fields only, each of its type.
        seqless_decoder: the same for messages without a seq.
    """

    columns: tuple[Column, ...]
    row: type[Struct]
    snapshot: type[Struct]
    update: type[Struct]
    decoder: msgspec.json.Decoder[Any]
    seqless_decoder: msgspec.json.Decoder[Any]


def field_of(column: Column, place: int) -> str:
    """Name of a row's attribute that holds a declared column.

    Args:
        place: of the column among those declared.
    """
    return ID if column.name == ID else f"c{place}"


def is_plain(name: str) -> bool:
    """Whether msgspec can find a field by this name: JSON has it without escapes."""
    return not {'"', "\\"} & {*name}


@lru_cache(maxsize=8)
def message_types(columns: tuple[Column, ...]) -> MessageTypes:
    """Makes the structs and their decoder, once for each set of columns."""
    others = [(i, column) for i, column in enumerate(columns) if column.name != ID]
    fields: list[tuple[str, Any, Any]] = [
        (f"c{i}", Union[_value_type(column), None, UnsetType] if is_plain(column.name) else _NOTHING, UNSET)  # noqa: UP007 - built at run time
        for i, column in others
    ]
    names = {f"c{i}": column.name if is_plain(column.name) else internal(f"c{i}") for i, column in others}
    row = msgspec.defstruct(
        "Row", [(ID, RowId), *fields], gc=False, forbid_unknown_fields=True, rename=names, module=__name__
    )
    rows = list[row]  # type: ignore[valid-type]  # the struct is made at run time
    snapshot, update = _snapshot(_Message, rows), _update(_Message, rows)
    decoder = msgspec.json.Decoder(Union[snapshot, update, Heartbeat, End])  # noqa: UP007 - built at run time
    seqless: Any = Union[  # noqa: UP007 - built at run time
        _snapshot(_Seqless, rows),
        _update(_Seqless, rows),
        _struct("heartbeat", _Seqless, [], MessageType.HEARTBEAT, rows=(), deleted=()),
        _struct("end", _Seqless, [], MessageType.END, rows=(), deleted=()),
    ]
    return MessageTypes(columns, row, snapshot, update, decoder, msgspec.json.Decoder(seqless))


def _snapshot(base: type[Struct], rows: Any) -> type[Struct]:
    return _struct("snapshot", base, [("rows", rows)], MessageType.SNAPSHOT, deleted=())


def _update(base: type[Struct], rows: Any) -> type[Struct]:
    fields: list[Any] = [
        ("rows", rows, msgspec.field(default_factory=list)),
        ("deleted", list[RowId], msgspec.field(default_factory=list)),
    ]
    return _struct("update", base, fields, MessageType.UPDATE)


def _struct(tag: str, base: type[Struct], fields: Sequence[Any], code: MessageType, **fixed: Any) -> type[Struct]:
    """One type of message; what is `fixed` is an attribute of the class."""
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


def _value_type(column: Column) -> Any:
    if column.json_type is JsonType.BOOLEAN:
        return bool
    if column.json_type is JsonType.INTEGER:
        top = 2 ** (column.bits - 1)
        return Annotated[int, Meta(ge=-top, le=top - 1)]
    return float if column.json_type is JsonType.NUMBER else str
